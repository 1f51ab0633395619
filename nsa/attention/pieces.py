"""Exact softmax attention over a plan, forward and backward, one piece at a time.

A row sums 2^(score - r) over its pieces, with r fixed before the first. r is 0 if |q| * max |k| <=
56 bounds its scores (no overflow, no loss). Otherwise r is the row's true maximum, from a pass of
its own. The bound looks at the past alone, so the future moves no bit. The backward pass recomputes
scores from the log-sum-exp.

Keys are multiplied by scale * log2(e), since exp2 is faster than exp. Shapes as in plan.py; scores
and sums have the dtype of the keys, fp32 or fp64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.plan import Gathered, Plan, Span, pairs_at_once

_SAFE_SCORE = 56.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGradient:
    """What the backward pass of a branch needs besides its inputs.

    Attributes:
        grad: Gradient of the sum of the gated branches [N, P, D].
        gate_NP1: The gate of this branch.
        minus_lse_NP1: Minus its log-sum-exp.
        dot_NP1: <grad, branch output>, summed over D, which is the gradient of the gate.
        whole_rows: Whether each row is in one piece: then `dot_NP1` is written, else it is read.
    """

    grad: Tensor
    gate_NP1: Tensor
    minus_lse_NP1: Tensor
    dot_NP1: Tensor
    whole_rows: bool


def _lengths(x_NPD: Tensor) -> Tensor:
    """The length of every row: [N, P]."""
    return torch.linalg.vector_norm(x_NPD, dim=-1)


def _needs_maximum(lengths_NP: Tensor, k_NKD: Tensor) -> Tensor:
    """True for the rows [N, P] whose scores are not known to be small."""
    largest_key = _lengths(k_NKD).cummax(1).values
    rows = lengths_NP.view(*largest_key.shape, lengths_NP.shape[1] // max(1, k_NKD.shape[1]))
    # Not known of a row after a key that is NaN, though it may no longer see it.
    return ~(rows * largest_key[..., None] <= _SAFE_SCORE).flatten(1)


def _pieces(q_NPD: Tensor, k_NKD: Tensor, plan: Plan) -> Iterator[tuple[Span, slice, slice, slice]]:
    """The spans: each with the pairs that are computed together, its rows and its keys."""
    R = q_NPD.shape[1] // max(1, k_NKD.shape[1])
    for span in plan.spans:
        rows, keys = slice(span.t0 * R, span.t1 * R), slice(span.k0, span.k1)
        for pairs in pairs_at_once(q_NPD, (rows.stop - rows.start) * (span.k1 - span.k0)):
            yield span, pairs, rows, keys


def _by_query(x_NPX: Tensor, like_NKD: Tensor) -> Tensor:
    """Rows as a view [N * S, R * X], one line a query; there are as many keys as queries."""
    return x_NPX.view(like_NKD.shape[0] * like_NKD.shape[1], -1)


def _span_scores(
    q: Tensor, k: Tensor, plan: Plan, span: Span, offset: Tensor | None = None
) -> Tensor:
    """Scores [n, T * R, K] of a piece plus a number per row, -inf where hidden."""
    if offset is None:
        scores = torch.bmm(q, k.transpose(1, 2))
    else:
        scores = torch.baddbmm(offset, q, k.transpose(1, 2))
    plan.hide(scores.view(scores.shape[0], span.t1 - span.t0, -1, scores.shape[-1]), span)
    return scores


def _row_maxima(q_NPD: Tensor, k_NKD: Tensor, plan: Plan) -> Tensor:
    """The largest score of every row: [N, P]."""
    maxima = q_NPD.new_zeros(q_NPD.shape[:-1])
    for span, pairs, rows, keys in _pieces(q_NPD, k_NKD, plan):
        scores = _span_scores(q_NPD[pairs, rows], k_NKD[pairs, keys], plan, span)
        maxima[pairs, rows] = scores.amax(-1)
    by_query = _by_query(maxima, k_NKD)
    for gathered in plan.gathered:
        q = _by_query(q_NPD, k_NKD).index_select(0, gathered.queries).view(-1, q_NPD.shape[-1])
        k = k_NKD[gathered.n, gathered.k0 : gathered.k1]
        top = (q @ k.t()).amax(-1)
        before = by_query.index_select(0, gathered.queries)
        by_query.index_copy_(0, gathered.queries, torch.maximum(before, top.view_as(before)))
    return maxima


def attend(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    out_NPD: Tensor,
    *,
    begin: int = 0,
) -> Tensor:
    """Softmax attention over the pairs of a plan; overwrites `out_NPD`.

    Every row of `begin` and later is in one span and has a key there; earlier output is 0.

    Returns:
        Log-sum-exp [N, P], base 2.
    """
    reference, total = begin_sums(q_NPD, k_NKD, plan, begin)
    out_NPD[:, : begin * (q_NPD.shape[1] // max(1, k_NKD.shape[1]))] = 0
    for span, pairs, rows, keys in _pieces(q_NPD, k_NKD, plan):
        p = _span_scores(q_NPD[pairs, rows], k_NKD[pairs, keys], plan, span)
        if reference is not None:
            p -= reference[pairs, rows, None]
        p.exp2_()
        torch.sum(p, -1, out=total[pairs, rows])
        torch.bmm(p, v_NKD[pairs, keys], out=out_NPD[pairs, rows])
    for gathered in plan.gathered:
        _attend_gathered(q_NPD, k_NKD, v_NKD, gathered, reference, out_NPD, total)
    return end_sums(out_NPD, total, reference)


def begin_sums(
    q_NPD: Tensor, k_NKD: Tensor, plan: Plan, begin: int
) -> tuple[Tensor | None, Tensor]:
    """What is taken from every row's scores (None: nothing), and room for its sum: [N, P]."""
    lengths_NP = _lengths(q_NPD)
    needs = _needs_maximum(lengths_NP, k_NKD)
    reference = None
    if bool(needs.any()):
        reference = _row_maxima(q_NPD, k_NKD, plan).where(needs, 0.0)
    total = torch.empty_like(lengths_NP)
    total[:, : begin * (total.shape[1] // max(1, k_NKD.shape[1]))] = 1
    return reference, total


def end_sums(out_NPD: Tensor, total_NP: Tensor, reference_NP: Tensor | None) -> Tensor:
    """Divide the output by its sums; return the log-sum-exp [N, P], base 2."""
    out_NPD /= total_NP[..., None]
    lse = total_NP.log2_()
    return lse if reference_NP is None else lse.add_(reference_NP)


def _attend_gathered(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    gathered: Gathered,
    reference: Tensor | None,
    out: Tensor,
    total: Tensor,
) -> None:
    """Add gathered queries to the unnormalised output and to its total."""
    keys, queries = slice(gathered.k0, gathered.k1), gathered.queries
    q = _by_query(q_NPD, k_NKD).index_select(0, queries).view(-1, q_NPD.shape[-1])
    p = q @ k_NKD[gathered.n, keys].t()
    if reference is not None:
        p -= _by_query(reference, k_NKD).index_select(0, queries).view(-1, 1)
    p.exp2_()
    _by_query(total, k_NKD).index_add_(0, queries, p.sum(-1).view(len(queries), -1))
    added = (p @ v_NKD[gathered.n, keys]).view(len(queries), -1)
    _by_query(out, k_NKD).index_add_(0, queries, added)


def attend_backward(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    output: OutputGradient,
    dq_NPD: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of `gate * attend(q, k, v)`.

    A query that sees one key gives it all, whatever its score: that gradient is zero, and not what
    rounding leaves of a difference. log2(e) times the gradient of q is added to `dq_NPD`.

    Returns:
        1 / scale times the gradient of the unscaled keys, and that of the values: [N, K, D].
    """
    dk, dv = torch.zeros_like(k_NKD), torch.zeros_like(v_NKD)
    for span, pairs, rows, keys in _pieces(q_NPD, k_NKD, plan):
        q, k, v = q_NPD[pairs, rows], k_NKD[pairs, keys], v_NKD[pairs, keys]
        offset = output.minus_lse_NP1[pairs, rows]
        p = _span_scores(q, k, plan, span, offset).exp2_()
        lone = plan.lone_queries(span) * (q_NPD.shape[1] // k_NKD.shape[1])
        piece = (output, pairs, rows, p, q, k, v, dq_NPD[pairs, rows])
        span_backward(*piece, dk[pairs, keys], dv[pairs, keys], lone=lone)
    if plan.gathered:
        # One line of numbers per query, so that they are gathered once.
        numbers = torch.cat((output.minus_lse_NP1, output.gate_NP1, output.dot_NP1), dim=-1)
        for gathered in plan.gathered:
            _gathered_backward(q_NPD, k_NKD, v_NKD, gathered, output, numbers, dq_NPD, dk, dv)
    return dk, dv


def span_backward(
    output: OutputGradient,
    pairs: slice,
    rows: slice,
    p: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    lone: int,
) -> None:
    """Add the gradients of one piece of neighbouring rows.

    p are its probabilities [n, rows, K], overwritten. The first `lone` rows see a single key. dq,
    dk and dv are what is added to.
    """
    grad, gate = output.grad[pairs, rows], output.gate_NP1[pairs, rows]
    dot = output.dot_NP1[pairs, rows]
    if not output.whole_rows:
        p *= gate
        dv.baddbmm_(p.transpose(1, 2), grad)
        p *= torch.baddbmm(dot, grad, v.transpose(1, 2), beta=-1)
        p[:, :lone] = 0
        dk.baddbmm_(p.transpose(1, 2), q)
        dq.baddbmm_(p, k)
        return
    # Rows are narrower than what they see: the gate goes there, and `grad` is not rounded twice.
    dv.baddbmm_(p.transpose(1, 2), grad * gate)
    ds = torch.bmm(grad, v.transpose(1, 2)).mul_(p)
    # Over the sum of p, which rounding moves off 1 by as much as scores are large: of sharp rows,
    # whose gradient is a small difference, little else would be left.
    torch.div(ds.sum(-1, keepdim=True), p.sum(-1, keepdim=True), out=dot)
    ds.addcmul_(p, dot, value=-1)
    ds[:, :lone] = 0
    dk.baddbmm_(ds.transpose(1, 2), q * gate)
    dq.addcmul_(torch.bmm(ds, k), gate)


def _gathered_backward(
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    gathered: Gathered,
    output: OutputGradient,
    numbers: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Add the gradients of gathered queries."""
    D, queries = q_NPD.shape[-1], gathered.queries
    place = (gathered.n, slice(gathered.k0, gathered.k1))
    k, v = k_NKD[place], v_NKD[place]
    lines = _by_query(numbers, k_NKD).index_select(0, queries).view(-1, 3)
    offset, gate, dot = lines.split(1, dim=1)
    q = _by_query(q_NPD, k_NKD).index_select(0, queries).view(-1, D)
    grad = _by_query(output.grad, k_NKD).index_select(0, queries).view(-1, D)
    p = torch.addmm(offset, q, k.t()).exp2_().mul_(gate)
    dv[place].addmm_(p.t(), grad)
    p *= torch.addmm(dot, grad, v.t(), beta=-1)
    dk[place].addmm_(p.t(), q)
    _by_query(dq, k_NKD).index_add_(0, queries, (p @ k).view(len(queries), -1))
