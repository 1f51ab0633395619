"""The kernels as functions of tensors: sizes, grids, tiles, and the inverted selection.

An *entry* is one choice: query t of pair n = b * G + g chose a block in slot f; its number is
(n * T + (t - start)) * F + f. A *block* is n * J + j. Entries are sorted by block on the device and
cut into portions of rows (entry, head). As many programs start as there could be portions.

Shapes: q, grad [B, S, H, D]; keys and values [B, K, G, D]; gates, dots [B, S, H, 3], R = H / G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from nsa.attention.gpu import band, gathered, scores
from nsa.attention.gpu.shapes import Band, Shape, padded, tiles_for
from nsa.attention.tensors import FIRST, RECENT

_LOG2_E = math.log2(math.e)
# Rows of scores that one program keeps in registers while it chooses.
_CHOICE_NUMBERS = 4096
# Block scores that lie in memory at once: quadratic in the sequence if all did, 0.5 GB at 64k.
_SCORE_BYTES = 64 * 1024 * 1024
# Tiles of rows that one program of the gathered backward pass sums up.
_GATHERED_TILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Portions:
    """The rows of all blocks, cut into portions of at most a given size; int32 on the device.

    Attributes:
        block: Block of each portion, the number of blocks for those that do not exist: [most].
        first: First portion of each block, and their number: [blocks + 1].
        most: How many portions there can be.
    """

    block: Tensor
    first: Tensor
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Entries by block.

    Attributes:
        entry: Numbers of the entries, sorted by block: [N * T * F] int32.
        first: First place in `entry` of each block, and their number: [blocks + 1] int32.
        blocks: Number of blocks, N * J.
    """

    entry: Tensor
    first: Tensor
    blocks: int


def invert(chosen_NTF: Tensor, J: int) -> Index:
    """Sort the choices by block of J a pair; within a block they keep their order: it repeats."""
    N = chosen_NTF.shape[0]
    device = chosen_NTF.device
    blocks = N * J
    pair = torch.arange(N, device=device, dtype=torch.int32)[:, None, None]
    by_block, entry = (chosen_NTF + pair * J).flatten().sort(stable=True)
    edges = torch.arange(blocks + 1, device=device, dtype=torch.int32)
    place = torch.searchsorted(by_block, edges, out_int32=True)
    return Index(entry=entry.to(torch.int32), first=place, blocks=blocks)


def cut(index: Index, heads: int, rows: int) -> Portions:
    """Portions of at most `rows` rows, a row being one of the `heads` heads of an entry."""
    per_block = (index.first.diff() * heads + rows - 1) // rows
    end = per_block.cumsum(0, dtype=torch.int32)
    most = index.entry.numel() * heads // rows + index.blocks
    number = torch.arange(most, device=end.device, dtype=torch.int32)
    block = torch.searchsorted(end, number, right=True, out_int32=True)
    return Portions(block=block, first=torch.cat((end[:1] * 0, end)), most=most)


def attend(
    shape: Shape, rule: Band, q: Tensor, k: Tensor, v: Tensor, words: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output [B, S, H, D] in the dtype of q and base-2 log-sum-exp [B, S, H] of a band."""
    tile = tiles_for(q.dtype, shape.D).forward
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    programs = triton.cdiv(shape.S * shape.R, tile.rows)
    band.band_forward[(programs, shape.pairs)](
        q, k, v, words, out, lse, shape.S, k.shape[1], shape.G,
        rule.prefix, shape.start, shape.scale * _LOG2_E,
        M=tile.rows, N=tile.keys, PRECISION="ieee", **shape.constants(), **rule.constants(),
        **tile.options(),
    )  # fmt: skip
    return out, lse


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGradients:
    """What the backward passes read for every row."""

    q: Tensor
    grad: Tensor
    gates: Tensor
    dots: Tensor


def attend_backward(
    shape: Shape,
    rule: Band,
    rows: RowGradients,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    dq: Tensor,
    words: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Gradients of gate * attend: dq (fp32) is set by branch 0 and added to by the others.

    Returns:
        dk, dv [B, K, G, D]: rounded to `dtype` where nothing is added to them, else fp32.
    """
    table = tiles_for(rows.q.dtype, shape.D)
    K, log2_scale = k.shape[1], shape.scale * _LOG2_E
    constants = {**shape.constants(), **rule.constants(), "BRANCH": rule.branch}
    inputs = (rows.q, k, v, rows.grad, lse, rows.gates, rows.dots, words)
    programs = triton.cdiv(shape.S * shape.R, table.dq.rows)
    band.band_dq[(programs, shape.pairs)](
        *inputs, dq, shape.S, K, shape.G, rule.prefix, shape.start,
        log2_scale, shape.scale,
        M=table.dq.rows, N=table.dq.keys, ADD=rule.branch > 0, PRECISION="ieee", **constants,
        **table.dq.options(),
    )  # fmt: skip
    programs = triton.cdiv(K, table.dkdv.keys)
    chunk = rule.chunk(shape.S, programs * shape.pairs)
    parts = triton.cdiv(shape.S, chunk)
    dtype = torch.float32 if rule.summed or parts > 1 else dtype
    dk, dv = (k.new_empty((parts, *k.shape), dtype=dtype) for _ in range(2))
    if K:
        band.band_dkdv[(programs, parts, shape.pairs)](
            *inputs, dk, dv, shape.S, K, shape.B, shape.G, rule.prefix,
            shape.start, chunk, log2_scale, shape.scale,
            M=table.dkdv.rows, N=table.dkdv.keys, PRECISION="ieee", **constants,
            **table.dkdv.options(),
        )  # fmt: skip
    return (dk[0], dv[0]) if parts == 1 else (dk.sum(0), dv.sum(0))


def choose(
    shape: Shape, q: Tensor, k: Tensor, lse: Tensor, *, as_words: bool
) -> tuple[Tensor, Tensor | None]:
    """First and free blocks of the queries from `start` on: [B * G, T, F] int32; and their bits."""
    T, J, tile = shape.late, shape.blocks, tiles_for(q.dtype, shape.D).scores
    free = shape.free
    if T == 0 or free == 0:
        forced = torch.arange(FIRST, dtype=torch.int32, device=q.device)
        return forced.expand(shape.pairs, T, FIRST).contiguous(), None
    chosen = q.new_empty(shape.pairs, T, shape.gathered_blocks, dtype=torch.int32)
    words = q.new_empty(shape.pairs, T, dtype=torch.int64) if as_words else None
    width = padded(J)
    rows = max(1, _CHOICE_NUMBERS // width)
    # So many queries at a time that their scores stay within `_SCORE_BYTES`.
    most = max(1, _SCORE_BYTES // max(1, 4 * shape.pairs * J))
    score = q.new_empty(shape.pairs * min(most, T) * J, dtype=torch.float32)
    for first in range(shape.start, shape.S, most):
        count = min(most, shape.S - first)
        grid = (triton.cdiv(count, tile.rows), triton.cdiv(J, tile.keys), shape.pairs)
        scores.block_scores[grid](
            q, k, lse, score, shape.S, k.shape[1], shape.G, J, count, first, shape.scale * _LOG2_E,
            M=tile.rows, N=tile.keys, L=shape.l, STEP=shape.d, L_SEL=shape.l_sel, PRECISION="ieee",
            **shape.constants(), **tile.options(),
        )  # fmt: skip
        scores.choose_blocks[(triton.cdiv(count, rows), shape.pairs)](
            score, chosen, words, shape.S, J, count, first, shape.start,
            FREE=free, FIRST=FIRST, RECENT=RECENT, M=rows, JP=width, L_SEL=shape.l_sel,
            WORDS=as_words,
        )  # fmt: skip
    return chosen, words


def attend_gathered(
    shape: Shape, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, out: Tensor, lse: Tensor
) -> Index:
    """Add the chosen blocks to the output and log-sum-exp of the own ones, in place."""
    pairs, T, F = chosen.shape
    tile = tiles_for(q.dtype, shape.D).gathered
    index = invert(chosen, shape.blocks)
    portions = cut(index, shape.R, tile.rows)
    part = q.new_empty(pairs * T * F * shape.R, shape.D)
    part_lse = part.new_empty(len(part), dtype=torch.float32)
    gathered.gathered_forward[(portions.most,)](
        q, k, v, part, part_lse, index.entry, index.first, portions.block, portions.first,
        shape.S, shape.G, shape.blocks, T, shape.start, index.blocks,
        shape.scale * _LOG2_E,
        M=tile.rows, N=padded(shape.l_sel), F=F, L_SEL=shape.l_sel, PRECISION="ieee",
        **shape.constants(), **tile.options(),
    )  # fmt: skip
    rows = T * shape.R
    gathered.merge[(triton.cdiv(rows, 32), pairs)](
        part, part_lse, out, lse, shape.S, shape.G, T, shape.start,
        rows, M=32, F=F, **shape.constants(),
    )  # fmt: skip
    return index


def attend_gathered_backward(
    shape: Shape,
    rows: RowGradients,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    index: Index,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Add the gradients of the gathered blocks to dq, dk and dv, in place."""
    T, F, pairs = shape.late, shape.gathered_blocks, shape.pairs
    tile = tiles_for(rows.q.dtype, shape.D).gathered_backward
    portions = cut(index, shape.R, tile.rows * _GATHERED_TILES)
    part = rows.q.new_empty(pairs * T * F * shape.R, shape.D)
    part_dk, part_dv = (dq.new_empty(portions.most, shape.l_sel, shape.D) for _ in range(2))
    gathered.gathered_backward[(portions.most,)](
        rows.q, k, v, rows.grad, lse, rows.gates, rows.dots, part, part_dk, part_dv, index.entry,
        index.first, portions.block, portions.first,
        shape.S, shape.G, shape.blocks, T, shape.start, index.blocks,
        shape.scale * _LOG2_E, shape.scale,
        M=tile.rows, N=padded(shape.l_sel), F=F, L_SEL=shape.l_sel, TILES=_GATHERED_TILES,
        PRECISION="ieee", **shape.constants(), **tile.options(),
    )  # fmt: skip
    count = T * shape.R
    gathered.add_dq[(triton.cdiv(count, 32), pairs)](
        part, dq, shape.S, shape.G, T, shape.start, count,
        M=32, F=F, **shape.constants(),
    )  # fmt: skip
    gathered.add_dkdv[(index.blocks,)](
        part_dk, part_dv, dk, dv, portions.first,
        shape.S, shape.G, shape.blocks,
        D=shape.D, DP=padded(shape.D), N=padded(shape.l_sel), L_SEL=shape.l_sel,
    )  # fmt: skip


def mix(outs: tuple[Tensor, Tensor, Tensor], gate: Tensor) -> Tensor:
    """The gated sum of the branch outputs."""
    out, D = torch.empty_like(outs[0]), outs[0].shape[-1]
    rows = out.numel() // D
    scores.mix[(triton.cdiv(rows, 32),)](*outs, gate, out, rows, D=D, DP=padded(D), M=32)
    return out


def dots(outs: tuple[Tensor, Tensor, Tensor], grad: Tensor) -> Tensor:
    """<grad, output> of every branch: [B, S, H, 3] fp32."""
    dot, D = grad.new_empty(*grad.shape[:3], 3, dtype=torch.float32), grad.shape[-1]
    rows = grad.numel() // D
    scores.dots[(triton.cdiv(rows, 32),)](*outs, grad, dot, rows, D=D, DP=padded(D), M=32)
    return dot
