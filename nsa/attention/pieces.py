"""Exact softmax attention over a plan, forward and backward, never holding more than one piece.

A row's softmax is gathered from many pieces without ever rescaling what is already summed: each
row has one *reference* r fixed before the first piece, and sums 2^(score - r). r is 0 where the
Cauchy-Schwarz inequality bounds the row's scores (|q| * max |k| <= 56: no overflow, no loss), and
the row's true maximum, found by a pass of its own, where it does not. The bound looks at the past
of a row only, so the future cannot move a bit of it. The backward pass recomputes the scores from
the saved log-sum-exp.

Everything is in powers of two: scores are products times scale * log2(e), p = 2^(score - lse).
(PyTorch's exp2 takes a quarter of the time of its exp on x86.) The factor is in the keys already,
or, where that would cost precision, given as `factor` and applied to the products.

Shape legend as in plan.py. Scores, statistics and accumulators have the dtype of the keys: fp32,
or fp64 for fp64 inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.plan import Gathered, Plan, Span, key_rows, pairs_at_once, span_rows, span_view

_SAFE_SCORE = 56.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGradient:
    """What the backward pass of a branch needs besides its inputs.

    The gate is multiplied into the probabilities: gate * p = sign * 2^(score + offset).

    Attributes:
        grad_BSGRD: Gradient of the sum of the gated branches, contiguous.
        offset_BSGR1: log2 |gate| - log-sum-exp of this branch.
        dot_BSGR1: <grad, branch output>, summed over D (also the gradient of the gate).
        sign_BSGR1: Sign of the gate, None when no gate is negative.
    """

    grad_BSGRD: Tensor
    offset_BSGR1: Tensor
    dot_BSGR1: Tensor
    sign_BSGR1: Tensor | None


def _needs_maximum(q_BSGRD: Tensor, k_BGSD: Tensor, factor: float) -> Tensor:
    """True for the rows [B, S, G, R] whose scores are not known to be small."""
    norm = torch.linalg.vector_norm
    largest_key = norm(k_BGSD, dim=-1).mul_(abs(factor)).cummax(2).values.transpose(1, 2)
    return norm(q_BSGRD, dim=-1, dtype=k_BGSD.dtype) * largest_key[..., None] > _SAFE_SCORE


def _pairs(q_BSGRD: Tensor, span: Span) -> Iterator[tuple[slice, slice]]:
    return pairs_at_once(q_BSGRD, (span.t1 - span.t0) * (span.k1 - span.k0))


def _flat(x_BSGRX: Tensor) -> Tensor:
    """[B, S, G, R, X] or [B, S, G, R] as its flat rows, a view."""
    B, S, G = x_BSGRX.shape[:3]
    return x_BSGRX.view(B * S * G, -1)


def _span_scores(
    q: Tensor, k: Tensor, plan: Plan, span: Span, factor: float, offset: Tensor | None = None
) -> Tensor:
    """Scores [n, T * R, K] of a piece plus a number per row, -inf where hidden."""
    if offset is not None:
        scores = torch.baddbmm(offset, q, k.transpose(1, 2), alpha=factor)
    elif factor == 1.0:
        scores = torch.bmm(q, k.transpose(1, 2))
    else:
        scores = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2), alpha=factor)
    plan.hide(scores.view(scores.shape[0], span.t1 - span.t0, -1, scores.shape[-1]), span)
    return scores


def _gathered_scores(q: Tensor, k: Tensor, factor: float) -> Tensor:
    """Scores [T * R, K] of gathered queries."""
    if factor == 1.0:
        return q @ k.t()
    return torch.addmm(q.new_zeros(1, 1), q, k.t(), alpha=factor)


def _row_maxima(q_BSGRD: Tensor, k_BGSD: Tensor, plan: Plan, factor: float) -> Tensor:
    """The largest score of every row: [B, S, G, R]."""
    maxima = k_BGSD.new_zeros(q_BSGRD.shape[:-1])
    D = q_BSGRD.shape[-1]
    for span in plan.spans:
        queries, keys = slice(span.t0, span.t1), slice(span.k0, span.k1)
        for pairs in _pairs(q_BSGRD, span):
            q = span_rows(q_BSGRD, pairs, queries).to(k_BGSD.dtype)
            top = _span_scores(q, key_rows(k_BGSD, pairs, keys), plan, span, factor).amax(-1)
            place = span_view(maxima[..., None], pairs, queries)
            place.copy_(top.view(place.shape))
    rows = _flat(maxima)
    for gathered in plan.gathered:
        q = _flat(q_BSGRD).index_select(0, gathered.rows).view(-1, D).to(k_BGSD.dtype)
        k = k_BGSD[gathered.b, gathered.g, gathered.k0 : gathered.k1]
        top = _gathered_scores(q, k, factor).amax(-1)
        before = rows.index_select(0, gathered.rows)
        rows.index_copy_(0, gathered.rows, torch.maximum(before, top.view_as(before)))
    return maxima


def attend(
    q_BSGRD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    plan: Plan,
    *,
    begin: int = 0,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the pairs of a plan.

    Args:
        q_BSGRD: Queries, contiguous.
        k_BGSD: Keys.
        v_BGSD: Values.
        plan: The pieces; every row of `begin` and later is in one span and has a key there.
        begin: First query that the plan covers; the output of those before is 0.
        factor: scale * log2(e), 1 if the keys have been multiplied by it.

    Returns:
        Output [B, S, G, R, D] and log-sum-exp [B, S, G, R], base 2.
    """
    needs = _needs_maximum(q_BSGRD, k_BGSD, factor)
    reference = None
    if bool(needs.any()):
        reference = _row_maxima(q_BSGRD, k_BGSD, plan, factor).where(needs, 0.0)
    out = k_BGSD.new_empty(q_BSGRD.shape)
    total = k_BGSD.new_empty(q_BSGRD.shape[:-1])
    out[:, :begin], total[:, :begin] = 0, 1
    for span in plan.spans:
        queries, keys = slice(span.t0, span.t1), slice(span.k0, span.k1)
        for pairs in _pairs(q_BSGRD, span):
            q = span_rows(q_BSGRD, pairs, queries).to(k_BGSD.dtype)
            p = _span_scores(q, key_rows(k_BGSD, pairs, keys), plan, span, factor)
            if reference is not None:
                p -= span_rows(reference[..., None], pairs, queries)
            p.exp2_()
            place = span_view(total[..., None], pairs, queries)
            place.copy_(p.sum(-1).view(place.shape))
            place = span_view(out, pairs, queries)
            place.copy_(torch.bmm(p, key_rows(v_BGSD, pairs, keys)).view(place.shape))
    for gathered in plan.gathered:
        _attend_gathered(q_BSGRD, k_BGSD, v_BGSD, gathered, factor, reference, out, total)
    out /= total[..., None]
    lse = total.log2_()
    return out, lse if reference is None else lse.add_(reference)


def _attend_gathered(
    q_BSGRD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    gathered: Gathered,
    factor: float,
    reference: Tensor | None,
    out: Tensor,
    total: Tensor,
) -> None:
    """Add gathered queries to the unnormalised output and to its total."""
    R, D = q_BSGRD.shape[-2:]
    place = (gathered.b, gathered.g, slice(gathered.k0, gathered.k1))
    q = _flat(q_BSGRD).index_select(0, gathered.rows).view(-1, D).to(k_BGSD.dtype)
    p = _gathered_scores(q, k_BGSD[place], factor)
    if reference is not None:
        p -= _flat(reference).index_select(0, gathered.rows).view(-1, 1)
    p.exp2_()
    _flat(total).index_add_(0, gathered.rows, p.sum(-1).view(-1, R))
    _flat(out).index_add_(0, gathered.rows, (p @ v_BGSD[place]).view(-1, R * D))


def attend_backward(
    q_BSGRD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    plan: Plan,
    output: OutputGradient,
    dq_BSGRD: Tensor,
    *,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Gradients of `gate * attend(q, k, v)`.

    A query that sees one key gives it all, whatever its score: that gradient is zero, and not what
    rounding leaves of a difference.

    Args:
        q_BSGRD: Queries, contiguous.
        k_BGSD: Keys.
        v_BGSD: Values.
        plan: The pieces of the forward pass.
        output: Gradient of the gated output, and statistics.
        dq_BSGRD: log2(e) times the gradient of q is added to it; contiguous, dtype of the keys.
        factor: As for `attend`.

    Returns:
        1 / scale times the gradient of the unscaled keys, and that of the values: [B, G, S, D].
    """
    dk, dv = torch.zeros_like(k_BGSD), torch.zeros_like(v_BGSD)
    for span in plan.spans:
        queries, keys = slice(span.t0, span.t1), slice(span.k0, span.k1)
        for pairs in _pairs(q_BSGRD, span):
            q = span_rows(q_BSGRD, pairs, queries).to(k_BGSD.dtype)
            grad = span_rows(output.grad_BSGRD, pairs, queries)
            k, v = key_rows(k_BGSD, pairs, keys), key_rows(v_BGSD, pairs, keys)
            offset = span_rows(output.offset_BSGR1, pairs, queries)
            p = _span_scores(q, k, plan, span, factor, offset).exp2_()
            if output.sign_BSGR1 is not None:
                p *= span_rows(output.sign_BSGR1, pairs, queries)
            key_rows(dv, pairs, keys).baddbmm_(p.transpose(1, 2), grad)
            dot = span_rows(output.dot_BSGR1, pairs, queries)
            p *= torch.baddbmm(dot, grad, v.transpose(1, 2), beta=-1)
            if lone := plan.lone_queries(span):
                p.view(p.shape[0], span.t1 - span.t0, -1, p.shape[-1])[:, :lone] = 0
            key_rows(dk, pairs, keys).baddbmm_(p.transpose(1, 2), q)
            place = span_view(dq_BSGRD, pairs, queries)
            place.add_(torch.bmm(p, k).view(place.shape), alpha=factor)
    if plan.gathered:
        # One row of numbers per query, so that they are gathered once.
        numbers = torch.cat((output.offset_BSGR1, output.dot_BSGR1), dim=-1)
        for gathered in plan.gathered:
            _gathered_backward(
                q_BSGRD, k_BGSD, v_BGSD, gathered, factor, output, numbers, dq_BSGRD, dk, dv
            )
    return dk, dv


def _gathered_backward(
    q_BSGRD: Tensor,
    k_BGSD: Tensor,
    v_BGSD: Tensor,
    gathered: Gathered,
    factor: float,
    output: OutputGradient,
    numbers: Tensor,
    dq_BSGRD: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Add the gradients of gathered queries."""
    R, D = q_BSGRD.shape[-2:]
    place = (gathered.b, gathered.g, slice(gathered.k0, gathered.k1))
    k, v = k_BGSD[place], v_BGSD[place]
    offset, dot = _flat(numbers).index_select(0, gathered.rows).view(-1, 2).split(1, dim=1)
    q = _flat(q_BSGRD).index_select(0, gathered.rows).view(-1, D).to(k.dtype)
    grad = _flat(output.grad_BSGRD).index_select(0, gathered.rows).view(-1, D)
    p = torch.addmm(offset, q, k.t(), alpha=factor).exp2_()
    if output.sign_BSGR1 is not None:
        p *= _flat(output.sign_BSGR1).index_select(0, gathered.rows).view(-1, 1)
    dv[place].addmm_(p.t(), grad)
    p *= torch.addmm(dot, grad, v.t(), beta=-1)
    dk[place].addmm_(p.t(), q)
    _flat(dq_BSGRD).index_add_(0, gathered.rows, (p @ k).view(-1, R * D), alpha=factor)
