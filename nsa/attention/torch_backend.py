"""The fast PyTorch backend: three branches in one autograd function that recomputes scores.

No S x S tensor exists, and between forward and backward only the branch outputs and their
log-sum-exps are kept. Plain PyTorch: runs on CPU and CUDA; the sizes of the pieces suit a CPU
core's cache. Half-precision inputs are computed in fp32 (bf16 by native products summed in fp32
where the CPU has them, but for the compressed branch, which selects). The dense prefix of the
selected branch and the window are ordinary attention: where foreign kernels serve (kernels.py),
those compute them and autograd joins the results. First derivatives only.

Shape legend: B batch, S tokens, H heads, G groups, D head width, R = H / G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention import selection_rule
from nsa.attention.choice import Choice
from nsa.attention.compressed import compressed_attend, compressed_backward
from nsa.attention.compression import compress_tokens, exact_dtype
from nsa.attention.counters import count
from nsa.attention.derivatives import first_derivatives_only
from nsa.attention.kernels import PIECES, Kernels, attend_causally, choose_kernel
from nsa.attention.pieces import OutputGradient, attend, attend_backward
from nsa.attention.plan import Plan, piece_size, window_plan
from nsa.attention.precision import native_bf16, products
from nsa.attention.selection import free_blocks, prefix_length, selected_ids, selected_plan
from nsa.attention.tensors import Tensors

# Softmax is computed in powers of two: exp(x) = 2^(x * log2(e)).
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSizes:
    """Sizes of a call, and which parts of it the pieces serve (not foreign kernels)."""

    l: int  # noqa: E741
    d: int
    l_sel: int
    n_sel: int
    w: int
    scale: float
    with_prefix: bool = True
    with_window: bool = True


def _pack_keys(x_BKGD: Tensor, exact: torch.dtype, scale: float = 1.0) -> Tensor:
    """[B, K, G, D] -> [B, G, K, D], contiguous and multiplied by the scale."""
    packed = x_BKGD.to(exact)
    packed = packed * scale if scale != 1.0 else packed
    return packed.transpose(1, 2).contiguous()


def _unpack_keys(x_BGKD: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """[B, G, K, D] -> [B, K, G, D]."""
    unpacked = x_BGKD.mul_(scale) if scale != 1.0 else x_BGKD
    return unpacked.transpose(1, 2).to(dtype)


def _factors(scale: float, native: bool) -> tuple[float, float]:
    """What the keys, and what the products are multiplied by: scale * log2(e) in one of them.

    Scaled keys would no longer be bf16 numbers.
    """
    return (1.0, scale * _LOG2_E) if native else (scale * _LOG2_E, 1.0)


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass; None where foreign kernels serve.

    Attributes:
        outs: Output of each branch [B, S, G, R, D], in fp32 (fp64 for fp64 input).
        lses: Its base-2 log-sum-exp [B, S, G, R].
    """

    outs: tuple[Tensor, Tensor, Tensor | None]
    lses: tuple[Tensor, Tensor, Tensor | None]


# Of the selected and of the window branch.
Plans = tuple[Plan, Plan | None]


def compute(inputs: Sequence[Tensor], sizes: PieceSizes) -> tuple[Tensor, Tensor, Kept, Plans]:
    """The three branches.

    Args:
        inputs: q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win and gates.
        sizes: Of the call.

    Returns:
        out, the selected ids, and what the backward pass needs.
    """
    q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates = inputs
    B, S, H, D = q.shape
    G = k_sel.shape[2]
    exact = exact_dtype(q.dtype)
    start = prefix_length(S, sizes.l_sel, sizes.n_sel)
    q = q.contiguous().view(B, S, G, H // G, D)
    native = native_bf16(q.dtype, q.device)
    in_keys, factor = _factors(sizes.scale, native)
    keys = [_pack_keys(k_blocks, exact)]
    keys += [_pack_keys(k, exact, in_keys) for k in (k_sel, k_win)]
    values = [_pack_keys(v, exact) for v in (v_blocks, v_sel, v_win)]

    with products(q.device, "ieee"):
        out_cmp, lse_cmp, scores = compressed_attend(
            q, keys[0], values[0], l=sizes.l, d=sizes.d, l_sel=sizes.l_sel, start=start,
            factor=sizes.scale * _LOG2_E,
        )  # fmt: skip
    free = free_blocks(scores, start, sizes.l_sel, sizes.n_sel)
    plan_sel, plan_win = _plans(free, S, sizes, q.device)
    begin = 0 if sizes.with_prefix else start
    out_win, lse_win = None, None
    with products(q.device, "bf16" if native else "ieee"):
        out_sel, lse_sel = attend(q, keys[1], values[1], plan_sel, begin=begin, factor=factor)
        if plan_win is not None:
            out_win, lse_win = attend(q, keys[2], values[2], plan_win, factor=factor)

    gate = gates.to(exact).reshape(B, S, G, H // G, 3)
    out = gate.new_empty(B, S, H, D)  # no view of another: callers may write to it
    mixed = torch.mul(out_cmp, gate[..., 0:1], out=out.view(q.shape))
    mixed.addcmul_(out_sel, gate[..., 1:2])
    if out_win is not None:
        mixed.addcmul_(out_win, gate[..., 2:3])
    sel = selected_ids(free, S, sizes.l_sel, sizes.n_sel)
    kept = Kept(outs=(out_cmp, out_sel, out_win), lses=(lse_cmp, lse_sel, lse_win))
    return out.to(q.dtype), sel, kept, (plan_sel, plan_win)


def plans_of_selection(sel_BSGN: Tensor, sizes: PieceSizes) -> Plans:
    """The plans that `compute` made, from the ids that it returned."""
    S = sel_BSGN.shape[1]
    start = prefix_length(S, sizes.l_sel, sizes.n_sel)
    # Beyond the prefix ids begin and end with the forced ones.
    rule = selection_rule.RULE
    free = sel_BSGN[:, start:, :, rule.first : -rule.recent].transpose(1, 2)
    return _plans(free, S, sizes, sel_BSGN.device)


def _plans(free_BGTF: Tensor, S: int, sizes: PieceSizes, device: torch.device) -> Plans:
    plan_sel = selected_plan(free_BGTF, S, sizes.l_sel, with_prefix=sizes.with_prefix)
    if not sizes.with_window:
        return plan_sel, None
    return plan_sel, window_plan(S, sizes.w, piece_size(device).span_queries)


def gradients(
    grad_out: Tensor, inputs: Sequence[Tensor], kept: Kept, plans: Plans, sizes: PieceSizes
) -> tuple[Tensor | None, ...]:
    """Gradients of the inputs of `compute`, in their order and dtypes.

    Args:
        grad_out: Of the output [B, S, H, D].
        inputs: q to gates, as `compute` took them.
        kept: What it kept.
        plans: What it made.
        sizes: As it took them.
    """
    q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates = inputs
    B, S, H, D = q.shape
    G, exact = k_sel.shape[2], kept.outs[0].dtype
    start = prefix_length(S, sizes.l_sel, sizes.n_sel)
    q = q.contiguous().view(B, S, G, H // G, D)
    grad = grad_out.to(exact).contiguous().view(q.shape)
    gate = gates.to(exact).reshape(*q.shape[:-1], 3)
    dgate = torch.zeros_like(gate)
    for branch, out in enumerate(kept.outs):
        if out is not None:
            dgate[..., branch] = torch.linalg.vecdot(grad, out)
    sign = gate.sign() if bool((gate < 0).any()) else None
    dq = torch.zeros_like(q, dtype=exact)

    grads: list[Tensor | None] = []
    branches = ((k_blocks, v_blocks), (k_sel, v_sel), (k_win, v_win))
    for branch, (k, v) in enumerate(branches):
        lse = kept.lses[branch]
        if lse is None:
            grads += [None, None]
            continue
        native = branch > 0 and native_bf16(q.dtype, q.device)
        in_keys, factor = _factors(sizes.scale, native)
        packed = (q, _pack_keys(k, exact, in_keys), _pack_keys(v, exact))
        output = OutputGradient(
            grad_BSGRD=grad,
            offset_BSGR1=(gate[..., branch].abs().log2() - lse)[..., None],
            dot_BSGR1=dgate[..., branch, None],
            sign_BSGR1=None if sign is None else sign[..., branch, None].contiguous(),
        )
        with products(q.device, "bf16" if native else "ieee"):
            if branch == 0:
                dk, dv = compressed_backward(*packed, output, dq, l=sizes.l, d=sizes.d, start=start)
            else:
                plan = plans[branch - 1]
                assert plan is not None
                dk, dv = attend_backward(*packed, plan, output, dq, factor=factor)
        grads += [_unpack_keys(dk, k.dtype, sizes.scale), _unpack_keys(dv, v.dtype)]
    dq_out = dq.mul_(1 / _LOG2_E).view(grad_out.shape).to(q.dtype)
    return (dq_out, *grads, dgate.view(gates.shape).to(gates.dtype))


class _NsaFunction(torch.autograd.Function):
    """`compute` and `gradients` for autograd, which keeps the plans as they are."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, *tensors_and_sizes: Any
    ) -> tuple[Tensor, Tensor]:
        *tensors, sizes = tensors_and_sizes
        out, sel, kept, ctx.plans = compute(tensors, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(*tensors, *kept.outs, *kept.lses)
        ctx.mark_non_differentiable(sel)
        return out, sel

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_out: Tensor, _grad_sel: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out_cmp, out_sel, out_win, lse_cmp, lse_sel, lse_win = ctx.saved_tensors
        kept = Kept(outs=(out_cmp, out_sel, out_win), lses=(lse_cmp, lse_sel, lse_win))
        with torch.autocast(grad_out.device.type, enabled=False):
            return (*gradients(grad_out, inputs, kept, ctx.plans, ctx.sizes), None)


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
    tensors: Tensors,
    *,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    n_sel: int,
    w: int,
    scale: float,
    compressed: tuple[Tensor, Tensor] | None = None,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:
    """Fast NSA; arguments and shapes as `nsa.attention.nsa_attention`.

    Returns:
        `out` [B, S, H, D] in the dtype of q, and the selected block ids [B, S, G, n_sel].
    """
    q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates = tensors
    if compressed is None:
        k_blocks, v_blocks = (compress_tokens(x, l, d).to(q.dtype) for x in (k_cmp, v_cmp))
        compressed = (k_blocks, v_blocks)
    start = prefix_length(q.shape[1], l_sel, n_sel)
    prefix, window = _foreign(kernels, q, w, start)
    sizes = PieceSizes(
        l=l,
        d=d,
        l_sel=l_sel,
        n_sel=n_sel,
        w=w,
        scale=scale,
        with_prefix=prefix[1].path == PIECES,
        with_window=window[1].path == PIECES,
    )
    out, sel = _NsaFunction.apply(
        q, compressed[0], compressed[1], k_sel, v_sel, k_win, v_win, gates, sizes
    )
    keys_values = ((k_sel, v_sel), (k_win, v_win))
    for branch, ((operation, choice, width, queries), (k, v)) in enumerate(
        zip((prefix, window), keys_values, strict=True), start=1
    ):
        if choice.path == PIECES:
            continue
        here = slice(queries)
        inputs = q[:, here], k[:, here], v[:, here]
        part = attend_causally(operation, choice, *inputs, scale, width)
        part = part * gates[:, here, :, branch, None]
        rest = q.shape[1] - queries
        out = out + (torch.nn.functional.pad(part, (0, 0, 0, 0, 0, rest)) if rest else part)
    return out, sel
