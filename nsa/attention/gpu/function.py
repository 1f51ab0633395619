"""The Triton backend: three branches in one autograd function that recomputes scores.

The selected branch has two forms. *Bits*, up to 32 blocks: one band over all keys before the query,
in which a word of bits hides the blocks that it did not choose (1.3 times the products at 2048,
nothing gathered). *Gathered*, beyond: dense prefix and own blocks as a band, and every chosen block
meets the queries that chose it; the parts are rounded to the dtype of q and folded in fp32.

First derivatives only. TRITON_INTERPRET=1 runs it slowly on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention.compression import compress_tokens
from nsa.attention.gpu.launch import (
    Index,
    RowGradients,
    attend,
    attend_backward,
    attend_gathered,
    attend_gathered_backward,
    choose,
    dots,
    mix,
)
from nsa.attention.gpu.shapes import Band, Shape
from nsa.attention.precision import first_derivatives_only
from nsa.attention.selection import prefix_length, selected_ids
from nsa.attention.tensors import FIRST, RECENT, Call, Tensors

MOST_BLOCKS_AS_BITS = 32  # 64 fit into a word


def takes_bits(shape: Shape) -> bool:
    """Whether the selected branch is one band in which words of bits hide blocks."""
    return shape.late > 0 and shape.free > 0 and shape.blocks <= MOST_BLOCKS_AS_BITS


def _bands(shape: Shape, w: int) -> tuple[Band, Band, Band]:
    """Compressed blocks; selected blocks, or dense prefix with the recent blocks; window."""
    before = (RECENT - 1) * shape.l_sel
    selected = (
        Band(branch=1, prefix=shape.S, block=shape.l_sel)
        if takes_bits(shape)
        else Band(
            branch=1, prefix=shape.start, align=shape.l_sel, back=before,
            summed=shape.late > 0,
        )
    )  # fmt: skip
    return (
        Band(branch=0, prefix=shape.S, stride=shape.d, reach=shape.l - 1),
        selected,
        Band(branch=2, prefix=0, back=w - 1),
    )


class Computed(NamedTuple):
    """What the forward pass leaves.

    Attributes:
        out: Output [B, S, H, D].
        chosen: The first and the free blocks [B * G, T, F].
        kept: What `_gradients` reads after the inputs: the output and then the log-sum-exp of each
            branch; then the words of bits, or entries and their first places, or nothing.
    """

    out: Tensor
    chosen: Tensor
    kept: list[Tensor]


def _compute(q: Tensor, keys_values: list[Tensor], gates: Tensor, shape: Shape, w: int) -> Computed:
    """The three branches, of contiguous tensors of one dtype."""
    (k_cmp, v_cmp), pair_sel, pair_win = zip(keys_values[::2], keys_values[1::2], strict=True)
    compressed, selected, window = _bands(shape, w)
    out_cmp, lse_cmp = attend(shape, compressed, q, k_cmp, v_cmp)
    bits = takes_bits(shape)
    chosen, words = choose(shape, q, k_cmp, lse_cmp, as_words=bits)
    out_sel, lse_sel = attend(shape, selected, q, *pair_sel, words)
    index: tuple[Tensor, ...] = () if words is None else (words,)
    if shape.late and not bits:
        gathered = attend_gathered(shape, q, *pair_sel, chosen, out_sel, lse_sel)
        index = (gathered.entry, gathered.first)
    out_win, lse_win = attend(shape, window, q, *pair_win)
    outs = (out_cmp, out_sel, out_win)
    return Computed(mix(outs, gates), chosen, [*outs, lse_cmp, lse_sel, lse_win, *index])


def _gradients(
    grad: Tensor,
    q: Tensor,
    keys_values: list[Tensor],
    gates: Tensor,
    kept: list[Tensor],
    dtypes: list[torch.dtype],
    shape: Shape,
    w: int,
) -> list[Tensor]:
    """Gradients of q, the keys and values (in `dtypes`) and the gates."""
    outs, lses, index = (kept[0], kept[1], kept[2]), kept[3:6], kept[6:]
    grad, bits = grad.contiguous(), takes_bits(shape)
    rows = RowGradients(q=q, grad=grad, gates=gates, dots=dots(outs, grad))
    dq = torch.empty_like(q, dtype=torch.float32)
    grads: list[Tensor] = []
    for rule in _bands(shape, w):
        k, v = keys_values[2 * rule.branch : 2 * rule.branch + 2]
        lse, words = lses[rule.branch], index[0] if rule.block else None
        dtype = torch.promote_types(*dtypes[2 * rule.branch : 2 * rule.branch + 2])
        dk, dv = attend_backward(shape, rule, rows, k, v, lse, dq, words, dtype)
        if rule.branch == 1 and index and not bits:
            gathered = Index(entry=index[0], first=index[1], blocks=shape.pairs * shape.blocks)
            attend_gathered_backward(shape, rows, k, v, lse, gathered, dq, dk, dv)
        grads += [dk, dv]
    grads = [x.to(dtype) for x, dtype in zip(grads, dtypes, strict=True)]
    return [dq.to(q.dtype), *grads, rows.dots.to(gates.dtype)]


def _as_kernels_read(inputs: list[Tensor]) -> tuple[Tensor, list[Tensor], Tensor]:
    """Queries, keys and values in the dtype of the queries, and gates; all contiguous."""
    q, *keys_values, gates = inputs
    keys_values = [x.to(q.dtype).contiguous() for x in keys_values]
    return q.contiguous(), keys_values, gates.contiguous()


class _NsaTritonFunction(torch.autograd.Function):
    """out and the chosen blocks from queries, (compressed) keys and values, and gates."""

    @staticmethod
    def forward(ctx: Any, *inputs_and_sizes: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        *inputs, shape, w = inputs_and_sizes
        ctx.dtypes = [x.dtype for x in inputs[1:-1]]
        q, keys_values, gates = _as_kernels_read(inputs)
        computed = _compute(q, keys_values, gates, shape, w)
        ctx.shape, ctx.w = shape, w
        ctx.save_for_backward(q, *keys_values, gates, *computed.kept)
        ctx.mark_non_differentiable(computed.chosen)
        ctx.set_materialize_grads(False)  # no zeros for the ids
        return computed.out, computed.chosen

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad_out: Tensor, _grad_chosen: None) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        q, keys_values, gates, kept = saved[0], saved[1:7], saved[7], saved[8:]
        grads = _gradients(grad_out, q, keys_values, gates, kept, ctx.dtypes, ctx.shape, ctx.w)
        return (*grads, None, None)


def _shape(q: Tensor, groups: int, call: Call) -> Shape:
    B, S, H, D = q.shape
    return Shape(
        B=B, S=S, G=groups, R=H // groups, D=D, l=call.l, d=call.d, l_sel=call.l_sel,
        n_sel=call.n_sel, scale=call.scale, start=prefix_length(S, call.l_sel, call.n_sel),
    )  # fmt: skip


def _all_ids(chosen: Tensor, shape: Shape) -> Tensor:
    """Selected block ids [B, S, G, n_sel] of what `choose` returned."""
    free = chosen[..., FIRST:].view(shape.B, shape.G, shape.S - shape.start, shape.free).long()
    return selected_ids(free, shape.S, shape.l_sel, shape.n_sel)


def nsa_attention_triton(
    tensors: Tensors, call: Call, compressed: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """NSA by Triton kernels; shapes as `nsa.attention.nsa_attention`.

    Returns:
        `out` [B, S, H, D] in the dtype of q, and the selected block ids [B, S, G, n_sel] (None
        unless wanted: nothing else needs them sorted).
    """
    q = tensors.q
    if compressed is None:
        k_blocks, v_blocks = (
            compress_tokens(x, call.l, call.d).to(q.dtype) for x in (tensors.k_cmp, tensors.v_cmp)
        )
        compressed = (k_blocks, v_blocks)
    shape = _shape(q, tensors.groups, call)
    with torch.cuda.device_of(q):  # Triton starts kernels on the current device
        out, chosen = _NsaTritonFunction.apply(q, *compressed, *tensors[3:], shape, call.w)
    return out, _all_ids(chosen, shape) if call.want_ids else None
