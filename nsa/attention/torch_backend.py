"""The fast PyTorch backend: three branches in one autograd function.

No S x S tensor exists; the output of the selected branch and the log-sum-exps are kept, and scores
are computed again. On a CPU a kernel in C takes the pieces where it can. Half precision is computed
in fp32. Foreign kernels may compute the dense prefix and the window (kernels.py). First derivatives
only. Shapes as in plan.py.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention import compressed, pieces
from nsa.attention.compression import compress_tokens, exact_dtype
from nsa.attention.counters import Choice, count
from nsa.attention.cpu import pieces as cpu_pieces
from nsa.attention.kernels import PIECES, Kernels, attend_causally, choose_kernel
from nsa.attention.pieces import OutputGradient
from nsa.attention.plan import Plan, pack_rows, piece_size, unpack_rows, window_plan
from nsa.attention.precision import exact_products, first_derivatives_only
from nsa.attention.selection import (
    free_blocks,
    prefix_length,
    selected_ids,
    selected_plan,
    stretches,
)
from nsa.attention.tensors import FORCED, Call, Tensors

logger = logging.getLogger(__name__)

_CLOSE = 1e-5
"""How far the kernel in C may be off, as a share of the largest number."""
# Softmax is computed in powers of two: exp(x) = 2^(x * log2(e)).
_LOG2_E = math.log2(math.e)


def _pack_keys(x_BKGD: Tensor, exact: torch.dtype, scale: float = 1.0) -> Tensor:
    """[B, K, G, D] -> [N, K, D], contiguous and multiplied by the scale."""
    packed = x_BKGD.to(exact)
    packed = packed * scale if scale != 1.0 else packed
    return packed.transpose(1, 2).contiguous().flatten(0, 1)


def _unpack_keys(x_NKD: Tensor, like_BKGD: Tensor, scale: float = 1.0) -> Tensor:
    """[N, K, D] -> [B, K, G, D], in the dtype of the keys."""
    unpacked = x_NKD.mul_(scale) if scale != 1.0 else x_NKD
    B, K, G, D = like_BKGD.shape
    return unpacked.view(B, G, K, D).transpose(1, 2).to(like_BKGD.dtype)


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass; None where foreign kernels serve.

    Attributes:
        out_sel: Output of the selected branch [N, P, D], in fp32 (fp64 for fp64 input).
        lses: Base-2 log-sum-exp [N, P] of each branch.
    """

    out_sel: Tensor
    lses: tuple[Tensor, Tensor, Tensor | None]


# Plans of the selected branch and of the window branch.
Plans = tuple[Plan, Plan | None]


class Passes(NamedTuple):
    """The passes over plans: by PyTorch's operations, or by the kernel in C."""

    attend: Callable[..., Tensor] = pieces.attend
    attend_backward: Callable[..., tuple[Tensor, Tensor]] = pieces.attend_backward
    compressed_attend: Callable[..., Tensor] = compressed.compressed_attend
    compressed_backward: Callable[..., tuple[Tensor, Tensor]] = compressed.compressed_backward


def _passes_in_c(functions: cpu_pieces.Functions) -> Passes:
    return Passes(
        attend=partial(cpu_pieces.attend, functions),
        attend_backward=partial(cpu_pieces.attend_backward, functions),
        compressed_attend=partial(cpu_pieces.compressed_attend, functions),
        compressed_backward=partial(cpu_pieces.compressed_backward, functions),
    )


def compute(
    inputs: Sequence[Tensor], call: Call, passes: Passes | None = None
) -> tuple[Tensor, Tensor, Kept, Plans]:
    """The three branches.

    Args:
        inputs: q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win and gates.
        call: Sizes and scale.
        passes: Who attends over the plans; default the kernel in C where it can.

    Returns:
        out, the selected ids, and what the backward pass needs.
    """
    q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates = inputs
    (B, S, _, _), G, exact = q.shape, k_sel.shape[2], exact_dtype(q.dtype)
    start = prefix_length(S, call.l_sel, call.n_sel)
    passes = passes or _choose(q, G, exact)
    rows = pack_rows(q, G, exact)
    factor = call.scale * _LOG2_E
    gate = pack_rows(gates, G, exact).split(1, dim=-1)

    # Only the selected output is kept; large memory first, so that it has no small holes.
    out_sel, other = torch.empty_like(rows), torch.empty_like(rows)
    blocks = _pack_keys(k_blocks, exact), _pack_keys(v_blocks, exact)
    with exact_products(q.device):
        lse_cmp, free = _attend_compressed(passes, rows, *blocks, S, other, call, start)
        free = free.unflatten(0, (B, G))
    mixed = other * gate[0]
    plan_sel, plan_win = _plans(free, S, call, q.device)
    lse_win = None
    if plan_win is not None:
        keys, values = _pack_keys(k_win, exact, factor), _pack_keys(v_win, exact)
        with exact_products(q.device):
            lse_win = passes.attend(rows, keys, values, plan_win, other)
        mixed.addcmul_(other, gate[2])
    keys, values = _pack_keys(k_sel, exact, factor), _pack_keys(v_sel, exact)
    begin = 0 if call.with_prefix else start
    with exact_products(q.device):
        lse_sel = passes.attend(rows, keys, values, plan_sel, out_sel, begin=begin)
    mixed.addcmul_(out_sel, gate[1])
    sel = selected_ids(free, S, call.l_sel, call.n_sel)
    kept = Kept(out_sel=out_sel, lses=(lse_cmp, lse_sel, lse_win))
    return unpack_rows(mixed, q, G), sel, kept, (plan_sel, plan_win)


def _attend_compressed(
    passes: Passes,
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    out_NPD: Tensor,
    call: Call,
    start: int,
) -> tuple[Tensor, Tensor]:
    """Attention over the visible compressed blocks, and the blocks chosen by their scores.

    Memory never holds all scores of a long sequence.

    Returns:
        Base-2 log-sum-exp [N, P] (0 where nothing is visible), and the free blocks [N, T, F] of
        the queries from `start` on.
    """
    N, chosen, lse = len(k_NCD), [], q_NPD.new_zeros(q_NPD.shape[:2])
    length = piece_size(q_NPD.device).span_queries
    for stretch in stretches(S, start, N * -(-S // call.l_sel), length):
        scores = passes.compressed_attend(
            q_NPD, k_NCD, v_NCD, S, out_NPD, lse, call,
            start=start, stretch=stretch, factor=call.scale * _LOG2_E,
        )  # fmt: skip
        chosen.append(free_blocks(scores, max(start, stretch[0]), call.l_sel, call.n_sel))
    return lse, chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)


def _plans(free_BGTF: Tensor, S: int, call: Call, device: torch.device) -> Plans:
    plan_sel = selected_plan(free_BGTF, S, call.l_sel, with_prefix=call.with_prefix)
    if not call.with_window:
        return plan_sel, None
    return plan_sel, window_plan(S, call.w, piece_size(device).span_queries)


def gradients(
    grad_out: Tensor,
    inputs: Sequence[Tensor],
    kept: Kept,
    plans: Plans,
    call: Call,
    passes: Passes | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of the inputs of `compute`, in their order and dtypes, from its results."""
    q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates = inputs
    S, G, exact = q.shape[1], k_sel.shape[2], kept.out_sel.dtype
    start = prefix_length(S, call.l_sel, call.n_sel)
    passes = passes or _choose(q, G, exact)
    rows, grad, gate = (pack_rows(x, G, exact) for x in (q, grad_out, gates))
    dgate, dq = torch.zeros_like(gate), torch.zeros_like(rows)
    dgate[..., 1] = torch.linalg.vecdot(grad, kept.out_sel)

    grads: list[Tensor | None] = []
    branches = ((k_blocks, v_blocks), (k_sel, v_sel), (k_win, v_win))
    for branch, (k, v) in enumerate(branches):
        lse = kept.lses[branch]
        if lse is None:
            grads += [None, None]
            continue
        read = (rows, _pack_keys(k, exact, call.scale * _LOG2_E), _pack_keys(v, exact))
        output = OutputGradient(
            grad=grad,
            gate_NP1=gate[..., branch, None],
            minus_lse_NP1=-lse[..., None],
            dot_NP1=dgate[..., branch, None],
            whole_rows=branch != 1,
        )
        with exact_products(q.device):
            if branch == 0:
                dk, dv = passes.compressed_backward(*read, S, output, dq, call, start)
            else:
                dk, dv = passes.attend_backward(*read, plans[branch - 1], output, dq)
        grads += [_unpack_keys(dk, k, call.scale), _unpack_keys(dv, v)]
    del rows, grad, read, output  # their memory serves what is returned
    return (unpack_rows(dq.mul_(1 / _LOG2_E), q, G), *grads, unpack_rows(dgate, gates, G))


def _choose(q_BSHD: Tensor, G: int, exact: torch.dtype) -> Passes:
    """The kernel in C where it serves queries of G groups, computed in a dtype."""
    kernel = cpu_pieces.call_reason(q_BSHD, G, exact) or cpu_kernel()
    if not isinstance(kernel, str):
        count("pieces", "c")
        return _passes_in_c(kernel)
    if q_BSHD.device.type == "cpu":
        count("pieces", "torch", kernel)
    return Passes()


@functools.cache
@torch.no_grad()
def cpu_kernel() -> cpu_pieces.Functions | str:
    """The kernel in C, or why it does not serve; tried once against PyTorch's operations."""
    functions = cpu_pieces.load_functions()
    if isinstance(functions, str):
        return functions
    made = torch.Generator("cpu").manual_seed(1)
    n_sel = FORCED + 2
    call = Call(l=8, d=4, l_sel=8, n_sel=n_sel, w=40, scale=0.3)
    S = 8 * n_sel + 110
    C = (S - 8) // 4 + 1
    inputs = [
        torch.randn(1, length, heads, width, generator=made, dtype=torch.float32, device="cpu")
        for length, heads, width in (
            *((S, 6, 32), (C, 2, 32), (C, 2, 32)), *[(S, 2, 32)] * 4, (S, 6, 3)
        )
    ]  # fmt: skip
    ways = (Passes(), _passes_in_c(functions))
    by_torch, by_c = (_all_results(inputs, call, passes) for passes in ways)
    pairs = zip(by_torch, by_c, strict=True)
    if all(float((a - b).abs().max()) <= _CLOSE * float(a.abs().max()) for a, b in pairs):
        return functions
    reason = "it does not give what PyTorch's operations give here"
    logger.warning("the CPU kernel %s: %s", cpu_pieces.KERNEL.source.stem, reason)
    return reason


def _all_results(inputs: Sequence[Tensor], call: Call, passes: Passes) -> list[Tensor]:
    out, _, kept, plans = compute(inputs, call, passes)
    grads = gradients(out, inputs, kept, plans, call, passes)
    return [out, *(x for x in grads if x is not None)]


class _NsaFunction(torch.autograd.Function):
    """`compute` and `gradients` for autograd, which keeps the plans as they are."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, *tensors_and_sizes: Any
    ) -> tuple[Tensor, Tensor]:
        *tensors, call = tensors_and_sizes
        out, sel, kept, ctx.plans = compute(tensors, call)
        ctx.call = call
        ctx.save_for_backward(*tensors, kept.out_sel, *kept.lses)
        ctx.mark_non_differentiable(sel)
        return out, sel

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_out: Tensor, _grad_sel: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out_sel, lse_cmp, lse_sel, lse_win = ctx.saved_tensors
        kept = Kept(out_sel=out_sel, lses=(lse_cmp, lse_sel, lse_win))
        with torch.autocast(grad_out.device.type, enabled=False):
            return (*gradients(grad_out, inputs, kept, ctx.plans, ctx.call), None)


def _foreign(
    kernels: Kernels, q: Tensor, w: int, start: int
) -> tuple[tuple[str, Choice, int | None, int], ...]:
    """Operation, kernel, width and number of queries of the dense prefix and of the window."""
    parts = []
    for operation, width, queries in (("prefix", None, start), ("window", w, q.shape[1])):
        choice = choose_kernel(kernels, q, window=width is not None)
        if choice.path == PIECES:
            count(operation, PIECES, choice.reason)
        parts.append((operation, choice, width, queries))
    return tuple(parts)


def nsa_attention_torch(
    tensors: Tensors, call: Call, compressed: tuple[Tensor, Tensor] | None, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Fast NSA; shapes as `nsa.attention.nsa_attention`.

    Returns:
        `out` [B, S, H, D] in the dtype of q, and the selected block ids [B, S, G, n_sel].
    """
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = tensors
    if compressed is None:
        k_blocks, v_blocks = (
            compress_tokens(x, call.l, call.d).to(q.dtype) for x in (k_cmp, v_cmp)
        )
        compressed = (k_blocks, v_blocks)
    start = prefix_length(q.shape[1], call.l_sel, call.n_sel)
    prefix, window = _foreign(kernels, q, call.w, start)
    call = replace(call, with_prefix=prefix[1].path == PIECES, with_window=window[1].path == PIECES)
    out, sel = _NsaFunction.apply(q, *compressed, k_sel, v_sel, k_win, v_win, gates, call)
    keys_values = ((k_sel, v_sel), (k_win, v_win))
    for branch, ((operation, choice, width, queries), (k, v)) in enumerate(
        zip((prefix, window), keys_values, strict=True), start=1
    ):
        if choice.path == PIECES:
            continue
        here = slice(queries)
        inputs = q[:, here], k[:, here], v[:, here]
        part = attend_causally(operation, choice, *inputs, call.scale, width)
        part = part * gates[:, here, :, branch, None]
        rest = q.shape[1] - queries
        out = out + (torch.nn.functional.pad(part, (0, 0, 0, 0, 0, rest)) if rest else part)
    return out, sel
