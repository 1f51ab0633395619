"""The compressed branch, and the block scores that selection needs.

Query tiles start at the first query that sees a block (t = l - 1); earlier rows are zero.

Repeated text gives equal keys, and ties must go to the lower block. So equal products must give
equal probabilities to the last bit, wherever they stand. BLAS does not promise that for fp64, for
fewer than 12 columns or 4 rows, and at the end of a thread's share: those are summed here in one
order, or padded. The scale multiplies the products, not the keys. Shapes as in plan.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.pieces import OutputGradient, span_backward
from nsa.attention.plan import pairs_at_once, piece_size
from nsa.attention.tensors import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Queries [t0, t1) and the first `seen` compressed blocks, `sure` of which all of them see."""

    t0: int
    t1: int
    sure: int
    seen: int
    pairs: slice


def _tiles(
    q_NPD: Tensor, S: int, sizes: Sizes, start: int, stretch: tuple[int, int]
) -> Iterator[_Tile]:
    R, l, d = q_NPD.shape[1] // S, sizes.l, sizes.d  # noqa: E741
    length = piece_size(q_NPD.device).span_queries
    begin, end = max(l - 1, stretch[0]), stretch[1]
    # Tiles break at `start`, the first query whose block scores are wanted.
    edges = [*range(begin, min(start, end), length), *range(max(begin, start), end, length), end]
    for t0, t1 in itertools.pairwise(edges):
        seen = (t1 - l) // d + 1
        for pairs in pairs_at_once(q_NPD, (t1 - t0) * R * seen):
            yield _Tile(t0=t0, t1=t1, sure=(t0 + 1 - l) // d + 1, seen=seen, pairs=pairs)


_FEWEST_COLUMNS_OF_BLAS, _FEWEST_ROWS_OF_BLAS = 16, 4
_COLUMNS_TOGETHER = 32
"""Whole vectors of every BLAS: in a multiple of them no thread of it is left with less."""


def compressed_logits(q: Tensor, k: Tensor, factor: float) -> Tensor:
    """Products [n, T * R, K] times a factor; those that are equal are so to the last bit."""
    many = q.shape[1] >= _FEWEST_ROWS_OF_BLAS and k.shape[1] >= _FEWEST_COLUMNS_OF_BLAS
    if k.dtype != torch.float64 and many:
        shared = k.device.type == "cpu" and torch.get_num_threads() > 1
        spare = -k.shape[1] % _COLUMNS_TOGETHER if shared else 0
        if not spare:
            return torch.bmm(q, k.transpose(1, 2)).mul_(factor)
        whole = torch.nn.functional.pad(k, (0, 0, 0, spare))
        return torch.bmm(q, whole.transpose(1, 2))[..., : k.shape[1]].mul(factor)
    logits = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    for x in range(q.shape[-1]):
        logits += q[..., x, None] * k[:, None, :, x]
    return logits.mul_(factor)


# PyTorch takes so many numbers at a time through vector instructions. The rest at the end, or at
# the end of a thread's share of more than `_GRAIN`, goes through the C library's exp2.
_VECTOR = 32
_GRAIN = 32768


def exp2_alike_(x: Tensor) -> Tensor:
    """2^x in place, with equal results for equal numbers wherever they stand; x is contiguous."""
    if x.device.type != "cpu":
        return x.exp2_()
    flat = x.view(-1)
    whole = len(flat) // _VECTOR * _VECTOR
    shared = torch.get_num_threads() > 1 and whole >= _GRAIN
    for piece in flat[:whole].split(_GRAIN - _VECTOR if shared else whole or 1):
        piece.exp2_()
    if whole < len(flat):
        rest = flat.new_zeros(_VECTOR)
        rest[: len(flat) - whole] = flat[whole:]
        flat[whole:] = rest.exp2_()[: len(flat) - whole]
    return x


def _hide(scores: Tensor, tile: _Tile, sizes: Sizes) -> None:
    if tile.sure == tile.seen:
        return
    t = torch.arange(tile.t0, tile.t1, device=scores.device)[:, None, None]
    ends = torch.arange(tile.sure, tile.seen, device=scores.device) * sizes.d + sizes.l - 1
    view = scores.view(scores.shape[0], tile.t1 - tile.t0, -1, tile.seen)
    view[..., tile.sure :].masked_fill_(ends > t, -torch.inf)


def block_scores(p_NTRC: Tensor, blocks: int, sizes: Sizes) -> Tensor:
    """Eq. 9 and 10, with the (m, n) pairs of one offset m - n counted together: [N, T, J].

    Every block is summed in the same order, so equal probabilities give exactly equal scores.
    """
    a, r = sizes.l_sel // sizes.d, sizes.l // sizes.d
    counts = counts_of_offsets(sizes)
    N, T, _, seen = p_NTRC.shape
    padded = p_NTRC.new_zeros(N, T, r - 1 + a * blocks)
    of_all_heads = padded[..., r - 1 : r - 1 + seen]
    for of_head in p_NTRC.unbind(2):
        of_all_heads += of_head
    scores = p_NTRC.new_zeros(N, T, blocks)
    # What stands at each offset from the first block of every selection block.
    at_offsets = padded.unfold(-1, a + r - 1, a).unbind(-1)
    for count, at_offset in zip(counts, at_offsets, strict=True):
        scores.add_(at_offset, alpha=count)
    return scores


def counts_of_offsets(sizes: Sizes) -> list[int]:
    """How often a compressed block counts that stands 1 - l / d, and so on up to l_sel / d - 1,
    blocks after the first one of a selection block."""
    a, r = sizes.l_sel // sizes.d, sizes.l // sizes.d
    return [min(a, offset + r) - max(0, offset) for offset in range(1 - r, a)]


def compressed_attend(
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    out_NPD: Tensor,
    lse_NP: Tensor,
    sizes: Sizes,
    *,
    start: int,
    stretch: tuple[int, int],
    factor: float,
) -> Tensor:
    """Attention of a stretch of queries over the compressed blocks they see, and block scores.

    Overwrites `out_NPD` in the stretch, and `lse_NP` where anything is visible. `start` is the
    first query whose block scores are wanted (S for none); `factor` is scale * log2(e).

    Returns:
        The scores of the selection blocks [N, T, J] of the stretch's last T queries, from `start`.
    """
    N, P, _ = q_NPD.shape
    R, blocks, (begin, end) = P // S, -(-S // sizes.l_sel), stretch
    first = max(start, begin)
    out_NPD[:, begin * R : max(begin, min(end, sizes.l - 1)) * R] = 0
    scores = q_NPD.new_zeros(N, max(0, end - first), blocks)
    for tile in _tiles(q_NPD, S, sizes, start, stretch):
        pairs, rows, seen = tile.pairs, slice(tile.t0 * R, tile.t1 * R), slice(tile.seen)
        p = compressed_logits(q_NPD[pairs, rows], k_NCD[pairs, seen], factor)
        _hide(p, tile, sizes)
        top = p.amax(-1, keepdim=True)
        exp2_alike_(p.sub_(top))
        total = p.sum(-1, keepdim=True)
        p /= total
        torch.add(total.log2_(), top, out=lse_NP[pairs, rows, None])
        torch.bmm(p, v_NCD[pairs, seen], out=out_NPD[pairs, rows])
        if tile.t0 >= start:
            per_head = p.view(-1, tile.t1 - tile.t0, R, tile.seen)
            wanted = scores[pairs, tile.t0 - first : tile.t1 - first]
            wanted.copy_(block_scores(per_head, blocks, sizes))
    return scores


def compressed_backward(
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    output: OutputGradient,
    dq_NPD: Tensor,
    sizes: Sizes,
    start: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of `gate * compressed_attend(...)`, as `pieces.attend_backward`.

    The keys are multiplied by scale * log2(e) here. A query that sees one block gives it all,
    whatever its score: that gradient is zero, and not what rounding leaves of a difference.
    """
    dk, dv = torch.zeros_like(k_NCD), torch.zeros_like(v_NCD)
    R = q_NPD.shape[1] // S
    for tile in _tiles(q_NPD, S, sizes, start, (0, S)):
        pairs, rows, seen = tile.pairs, slice(tile.t0 * R, tile.t1 * R), slice(tile.seen)
        q, k, v = q_NPD[pairs, rows], k_NCD[pairs, seen], v_NCD[pairs, seen]
        p = torch.baddbmm(output.minus_lse_NP1[pairs, rows], q, k.transpose(1, 2))
        _hide(p, tile, sizes)
        piece = (output, pairs, rows, p.exp2_(), q, k, v, dq_NPD[pairs, rows])
        lone = max(0, sizes.l - 1 + sizes.d - tile.t0) * R
        span_backward(*piece, dk[pairs, seen], dv[pairs, seen], lone=lone)
    return dk, dv
