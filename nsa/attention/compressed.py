"""The compressed branch: coarse attention over block means, and the scores that selection needs.

A query sees the blocks that end at or before it. Query tiles start at the first query that sees a
block (t = l - 1), so no row is empty; the rows before it are zero.

Ties between blocks are real (repeated text gives equal keys), and go to the lower block only if
equal products get equal probabilities to the last bit, wherever they stand. BLAS does not promise
that: its fp64 products, and fp32 ones of fewer than 12 columns, differ by a rounding from column to
column, and so do sums over many heads. These are added up here in one order for all columns; the
scale is multiplied to the products, since keys that are scaled, and so rounded, first may lose
products that were equal; and powers are taken by one implementation (`exp2_alike_`).

Shape legend as in plan.py, and C compressed blocks, J selection blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention.pieces import OutputGradient
from nsa.attention.plan import key_rows, pairs_at_once, piece_size, span_rows, span_view


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Queries [t0, t1) and the first `seen` compressed blocks, `sure` of which all of them see."""

    t0: int
    t1: int
    sure: int
    seen: int
    pairs: tuple[slice, slice]


def _tiles(q_BSGRD: Tensor, l: int, d: int, start: int) -> Iterator[_Tile]:  # noqa: E741
    S = q_BSGRD.shape[1]
    length = piece_size(q_BSGRD.device).span_queries
    # Tiles break at `start`, the first query whose block scores are wanted.
    edges = [*range(l - 1, min(start, S), length), *range(max(l - 1, start), S, length), S]
    for t0, t1 in itertools.pairwise(edges):
        seen = (t1 - l) // d + 1
        for pairs in pairs_at_once(q_BSGRD, (t1 - t0) * seen):
            yield _Tile(t0=t0, t1=t1, sure=(t0 + 1 - l) // d + 1, seen=seen, pairs=pairs)


_FEWEST_COLUMNS_OF_BLAS = 16


def compressed_logits(q: Tensor, k: Tensor, factor: float) -> Tensor:
    """Products [n, T * R, K] times a factor; those that are equal are so to the last bit.

    Args:
        q: Queries [n, T * R, D].
        k: Compressed keys [n, K, D], not scaled.
        factor: scale * log2(e).
    """
    if k.dtype != torch.float64 and k.shape[1] >= _FEWEST_COLUMNS_OF_BLAS:
        return torch.bmm(q, k.transpose(1, 2)).mul_(factor)
    logits = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    for x in range(q.shape[-1]):
        logits += q[..., x, None] * k[:, None, :, x]
    return logits.mul_(factor)


# PyTorch takes so many numbers through vector instructions at a time, and what is left over at the
# end, or at the end of a thread's share of more than `_GRAIN`, through the C library's exp2.
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


def _hide(scores: Tensor, tile: _Tile, l: int, d: int) -> None:  # noqa: E741
    if tile.sure == tile.seen:
        return
    t = torch.arange(tile.t0, tile.t1, device=scores.device)[:, None, None]
    ends = torch.arange(tile.sure, tile.seen, device=scores.device) * d + l - 1
    view = scores.view(scores.shape[0], tile.t1 - tile.t0, -1, tile.seen)
    view[..., tile.sure :].masked_fill_(ends > t, -torch.inf)


def block_scores(p_NTRC: Tensor, blocks: int, l: int, d: int, l_sel: int) -> Tensor:  # noqa: E741
    """Eq. 9 and 10, with the (m, n) pairs of one offset m - n counted together: [N, T, J].

    Every block is summed in the same order, so equal probabilities give exactly equal scores.
    """
    a, r = l_sel // d, l // d
    N, T, _, seen = p_NTRC.shape
    padded = p_NTRC.new_zeros(N, T, r - 1 + a * blocks)
    of_all_heads = padded[..., r - 1 : r - 1 + seen]
    for of_head in p_NTRC.unbind(2):
        of_all_heads += of_head
    scores = p_NTRC.new_zeros(N, T, blocks)
    # What stands at offsets 1 - r .. a - 1 from the first block of every selection block.
    for offset, at_offset in enumerate(padded.unfold(-1, a + r - 1, a).unbind(-1), start=1 - r):
        count = sum(0 <= m - offset < r for m in range(a))
        scores.add_(at_offset, alpha=count)
    return scores


def compressed_attend(
    q_BSGRD: Tensor,
    k_BGCD: Tensor,
    v_BGCD: Tensor,
    *,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    start: int,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over the visible compressed blocks, and block scores from query `start` on.

    Args:
        q_BSGRD: Queries, contiguous.
        k_BGCD: Compressed keys, not scaled.
        v_BGCD: Compressed values.
        l: Tokens in a compression block.
        d: Tokens between the starts of two compression blocks.
        l_sel: Tokens in a selection block.
        start: First query whose block scores are wanted (S for none).
        factor: scale * log2(e).

    Returns:
        Output [B, S, G, R, D], base-2 log-sum-exp [B, S, G, R] (0 where nothing is visible) and the
        scores of the selection blocks [B, G, max(0, S - start), J].
    """
    B, S, G, R, _ = q_BSGRD.shape
    blocks = -(-S // l_sel)
    out = k_BGCD.new_empty(q_BSGRD.shape)
    out[:, : l - 1] = 0
    lse = k_BGCD.new_zeros(q_BSGRD.shape[:-1])
    scores = k_BGCD.new_zeros(B, G, max(0, S - start), blocks)
    for tile in _tiles(q_BSGRD, l, d, start):
        pairs, queries, seen = tile.pairs, slice(tile.t0, tile.t1), slice(tile.seen)
        q = span_rows(q_BSGRD, pairs, queries).to(k_BGCD.dtype)
        p = compressed_logits(q, key_rows(k_BGCD, pairs, seen), factor)
        _hide(p, tile, l, d)
        top = p.amax(-1, keepdim=True)
        exp2_alike_(p.sub_(top))
        total = p.sum(-1, keepdim=True)
        p /= total
        place = span_view(lse[..., None], pairs, queries)
        place.copy_(total.log2_().add_(top).view(place.shape))
        place = span_view(out, pairs, queries)
        place.copy_(torch.bmm(p, key_rows(v_BGCD, pairs, seen)).view(place.shape))
        if tile.t0 >= start:
            per_head = p.view(-1, tile.t1 - tile.t0, R, tile.seen)
            wanted = scores[pairs[0], pairs[1], tile.t0 - start : tile.t1 - start]
            wanted.copy_(block_scores(per_head, blocks, l, d, l_sel).view(wanted.shape))
    return out, lse, scores


def compressed_backward(
    q_BSGRD: Tensor,
    k_BGCD: Tensor,
    v_BGCD: Tensor,
    output: OutputGradient,
    dq_BSGRD: Tensor,
    *,
    l: int,  # noqa: E741
    d: int,
    start: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of `gate * compressed_attend(...)`, as `pieces.attend_backward`.

    The keys are multiplied by scale * log2(e) here. A query that sees one block gives it all,
    whatever its score: that gradient is zero, and not what rounding leaves of a difference.
    """
    dk, dv = torch.zeros_like(k_BGCD), torch.zeros_like(v_BGCD)
    for tile in _tiles(q_BSGRD, l, d, start):
        pairs, queries, seen = tile.pairs, slice(tile.t0, tile.t1), slice(tile.seen)
        q = span_rows(q_BSGRD, pairs, queries).to(k_BGCD.dtype)
        grad = span_rows(output.grad_BSGRD, pairs, queries)
        k, v = key_rows(k_BGCD, pairs, seen), key_rows(v_BGCD, pairs, seen)
        offset = span_rows(output.offset_BSGR1, pairs, queries)
        p = torch.baddbmm(offset, q, k.transpose(1, 2))
        _hide(p, tile, l, d)
        p.exp2_()
        if output.sign_BSGR1 is not None:
            p *= span_rows(output.sign_BSGR1, pairs, queries)
        key_rows(dv, pairs, seen).baddbmm_(p.transpose(1, 2), grad)
        dot = span_rows(output.dot_BSGR1, pairs, queries)
        p *= torch.baddbmm(dot, grad, v.transpose(1, 2), beta=-1)
        if (lone := l - 1 + d - tile.t0) > 0:
            p.view(p.shape[0], tile.t1 - tile.t0, -1, tile.seen)[:, :lone] = 0
        key_rows(dk, pairs, seen).baddbmm_(p.transpose(1, 2), q)
        place = span_view(dq_BSGRD, pairs, queries)
        place += torch.bmm(p, k).view(place.shape)
    return dk, dv
