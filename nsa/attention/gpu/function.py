"""The Triton backend: three branches in one autograd function that recomputes scores.

Between forward and backward the branch outputs (in the dtype of q), their log-sum-exps and the
index of the selection are kept. Half-precision products are accumulated in fp32; compressed keys
and values are rounded to the dtype of q before they are used. First derivatives only.

Compiled for a GPU, or run slowly on the CPU when Triton was imported with TRITON_INTERPRET=1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nsa.attention.compression import compress_tokens
from nsa.attention.gpu.index import Index
from nsa.attention.gpu.launch import (
    Band,
    RowGradients,
    Shape,
    attend,
    attend_backward,
    choose,
    dots,
    mix,
    visit,
    visit_backward,
)
from nsa.attention.selection import prefix_length, selected_ids


def _bands(shape: Shape, w: int) -> tuple[Band, Band, Band]:
    """Compressed blocks; dense prefix with own and previous block; window."""
    return (
        Band(branch=0, prefix=shape.S, stride=shape.d, reach=shape.l - 1),
        Band(branch=1, prefix=shape.start, align=shape.l_sel, back=shape.l_sel),
        Band(branch=2, prefix=0, back=w - 1),
    )


class _NsaTritonFunction(torch.autograd.Function):
    """out and the chosen blocks from queries, (compressed) keys and values, and gates."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, *keys_values_gates_and_sizes: Any
    ) -> tuple[Tensor, Tensor]:
        *tensors, shape, w = keys_values_gates_and_sizes
        q, *keys_values, gates = (x.contiguous() for x in (q, *tensors))
        pairs = list(zip(keys_values[::2], keys_values[1::2], strict=True))
        results = [
            attend(shape, rule, q, k, v)
            for rule, (k, v) in zip(_bands(shape, w), pairs, strict=True)
        ]
        outs, lses = zip(*results, strict=True)
        chosen = choose(shape, q, pairs[0][0], lses[0])
        index = None
        if shape.start < shape.S:
            index = visit(shape, q, *pairs[1], chosen, outs[1], lses[1])
        ctx.shape, ctx.w = shape, w
        ctx.blocks = index.blocks if index else 0
        kept = (index.entry, index.first) if index else ()
        ctx.save_for_backward(q, *keys_values, gates, *outs, *lses, *kept)
        ctx.mark_non_differentiable(chosen)
        return mix(outs, gates), chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, _grad_chosen: Tensor) -> tuple[Tensor | None, ...]:
        q, *rest = ctx.saved_tensors
        keys_values, gates, outs, lses, kept = (
            rest[:6],
            rest[6],
            tuple(rest[7:10]),
            rest[10:13],
            rest[13:],
        )
        shape, grad = ctx.shape, grad_out.contiguous()
        rows = RowGradients(q=q, grad=grad, gates=gates, dots=dots(outs, grad))
        dq = torch.empty_like(q, dtype=torch.float32)
        grads: list[Tensor] = []
        for rule in _bands(shape, ctx.w):
            k, v = keys_values[2 * rule.branch : 2 * rule.branch + 2]
            lse = lses[rule.branch]
            dk, dv = attend_backward(shape, rule, rows, k, v, lse, dq)
            if rule.branch == 1 and kept:
                index = Index(entry=kept[0], first=kept[1], blocks=ctx.blocks)
                visit_backward(shape, rows, k, v, lse, index, dq, dk, dv)
            grads += [dk.to(k.dtype), dv.to(v.dtype)]
        return (dq.to(q.dtype), *grads, rows.dots.to(gates.dtype), None, None)


def nsa_attention_triton(
    q: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    *,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    n_sel: int,
    w: int,
    scale: float,
    compressed: tuple[Tensor, Tensor] | None = None,
    want_ids: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """NSA by Triton kernels; arguments and shapes as `nsa.attention.nsa_attention`.

    Returns:
        `out` [B, S, H, D] in the dtype of q, and the selected block ids [B, S, G, n_sel] (None
        unless wanted: nothing else needs them sorted).
    """
    if compressed is None:
        compressed = (compress_tokens(k_cmp, l, d), compress_tokens(v_cmp, l, d))
    B, S, H, D = q.shape
    G = k_sel.shape[2]
    shape = Shape(
        B=B, S=S, G=G, R=H // G, D=D, l=l, d=d, l_sel=l_sel, n_sel=n_sel, scale=scale,
        start=prefix_length(S, l_sel, n_sel),
    )  # fmt: skip
    blocks = (x.to(q.dtype) for x in compressed)
    tensors = (q, *blocks, *(x.to(q.dtype) for x in (k_sel, v_sel, k_win, v_win)), gates)
    with torch.cuda.device_of(q):  # Triton starts kernels on the current device
        out, chosen = _NsaTritonFunction.apply(*tensors, shape, w)
    if not want_ids:
        return out, None
    free = chosen[..., 1:].view(B, G, S - shape.start, shape.free).long()
    return out, selected_ids(free, S, l_sel, n_sel)
