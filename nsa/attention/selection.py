"""Select blocks for each query, and find the queries that each block meets.

Queries before n_sel * l_sel select every block (a dense prefix). Later ones get the forced blocks
and the best of the rest, ties to the lower id. Shapes as in plan.py; J blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from nsa.attention.plan import Gathered, Plan, Span, causal_spans, piece_size
from nsa.attention.tensors import FIRST, FORCED, RECENT

_WITHOUT_SIGN, _INFINITY = 0x7FFFFFFF, 0x7F800000
"""Masks for the bits of a float32."""
_SCORES_AT_ONCE = 2**21
"""Block scores in memory together: all of them take 0.5 GB at 64k, and the keys they are ranked by
twice that."""
_MARKS_AT_ONCE = 2**23
"""Marks of who has chosen which block, in memory together: all of them take 0.13 GB at 64k."""


def prefix_length(S: int, l_sel: int, n_sel: int) -> int:
    """How many leading queries select everything they may see."""
    return min(S, n_sel * l_sel)


def stretches(S: int, start: int, scores: int, length: int) -> Iterator[tuple[int, int]]:
    """Queries [t0, t1) whose block scores are in memory together.

    A query from `start` on has so many `scores`; a stretch ends with `length` queries that are
    computed together.
    """
    step = max(length, _SCORES_AT_ONCE // max(1, scores) // length * length)
    return itertools.pairwise((0, *range(start + step, S, step), S))


def _best(scores_NTJ: Tensor, allowed_TJ: Tensor, count: int) -> Tensor:
    """Ids of the `count` best allowed blocks, ties to the lower id: [N, T, count]."""
    blocks = scores_NTJ.shape[-1]
    if scores_NTJ.dtype == torch.float64:
        ranked = scores_NTJ.masked_fill(~allowed_TJ, -1.0)
        return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    # The bits of a non-negative float order like the float; the id below them settles ties, and
    # makes the selection of the best of many several times faster than a stable sort.
    ids = torch.arange(blocks, device=scores_NTJ.device)
    # NaN stands beside infinity, above all, as in that sort: by its sign its bits could stand below
    # blocks that do not exist.
    keys = scores_NTJ.view(torch.int32).to(torch.int64)
    keys.bitwise_and_(_WITHOUT_SIGN).clamp_(max=_INFINITY).mul_(blocks).add_(blocks - 1 - ids)
    keys.masked_fill_(~allowed_TJ, -1)
    best = keys.topk(count, dim=-1, sorted=False).values
    return blocks - 1 - best.remainder(blocks)


def free_blocks(scores_NTJ: Tensor, first: int, l_sel: int, n_sel: int) -> Tensor:
    """The blocks chosen by score for queries beyond the dense prefix, of which `first` is the
    first.

    Returns:
        Ids [N, T, F] in no particular order, F as many as the rule leaves free.
    """
    N, T, blocks = scores_NTJ.shape
    device = scores_NTJ.device
    if T == 0:
        return torch.zeros(N, 0, n_sel - FORCED, dtype=torch.int64, device=device)
    current = torch.arange(first, first + T, device=device)[:, None] // l_sel
    ids = torch.arange(blocks, device=device)
    allowed = (ids >= FIRST) & (ids <= current - RECENT)
    return _best(scores_NTJ, allowed, n_sel - FORCED)


def selected_ids(free_BGTF: Tensor, S: int, l_sel: int, n_sel: int) -> Tensor:
    """All selected block ids, ascending, -1 padded at the end: [B, S, G, n_sel] int64."""
    B, G, T, _ = free_BGTF.shape
    device = free_BGTF.device
    ids = torch.arange(n_sel, device=device)
    current = torch.arange(S - T, device=device)[:, None] // l_sel
    dense = ids.where(ids <= current, -1).expand(B, G, S - T, n_sel)
    own = (torch.arange(S - T, S, device=device) // l_sel)[:, None]
    return torch.cat((dense, _with_forced(free_BGTF, own)), dim=2).transpose(1, 2)


def _with_forced(free: Tensor, own: Tensor) -> Tensor:
    """Free blocks [..., F] with the forced ones of queries in the blocks `own` [..., 1], sorted."""
    shape = free.shape[:-1]
    recent = own - torch.arange(RECENT, device=free.device)
    first = torch.arange(FIRST, device=free.device)
    parts = (first.expand(*shape, FIRST), free, recent.expand(*shape, RECENT))
    return torch.cat(parts, dim=-1).sort(dim=-1).values


def _gathered(free_BGTF: Tensor, S: int, l_sel: int, blocks: int) -> tuple[Gathered, ...]:
    """Invert "query chose block" into "block meets these queries", the first meeting all."""
    free_NTF = free_BGTF.flatten(0, 1)
    N, T, _ = free_NTF.shape
    of_pair: list[list[Gathered]] = [[] for _ in range(N)]
    length = piece_size(free_NTF.device).gathered_queries
    at_once = max(1, _MARKS_AT_ONCE // max(1, N * T))
    for first in range(0, blocks, at_once):
        width = min(at_once, blocks - first)
        for number, queries in enumerate(_meeting(free_NTF - first, S, first, width)):
            pair, block = divmod(number, width)
            keys = {"k0": (first + block) * l_sel, "k1": (first + block + 1) * l_sel}
            of_pair[pair] += [
                Gathered(n=pair, queries=part, **keys)
                for part in queries.split(length)
                if len(part)
            ]
    return tuple(one for gathered in of_pair for one in gathered)


def _meeting(free_NTF: Tensor, S: int, first: int, width: int) -> tuple[Tensor, ...]:
    """The queries that meet each of `width` blocks from `first` on, which are counted from it."""
    N, T, _ = free_NTF.shape
    # The last column is of all other blocks.
    chosen = torch.zeros(N, T, width + 1, dtype=torch.bool, device=free_NTF.device)
    elsewhere = (free_NTF < 0) | (free_NTF >= width)
    chosen.scatter_(-1, free_NTF.masked_fill(elsewhere, width), True)
    chosen = chosen[..., :width]
    chosen[..., : max(0, FIRST - first)] = True
    n, j, t = chosen.transpose(1, 2).nonzero(as_tuple=True)
    counts = torch.bincount(n * width + j, minlength=N * width).tolist()
    return (n * S + (S - T) + t).split(counts)


def selected_plan(free_BGTF: Tensor, S: int, l_sel: int, *, with_prefix: bool = True) -> Plan:
    """The pieces of the selected branch: dense prefix, recent blocks, gathered queries.

    `free_BGTF` is of `free_blocks`; T = 0 when everything is selected.
    """
    T = free_BGTF.shape[2]
    before = (RECENT - 1) * l_sel
    length = piece_size(free_BGTF.device).span_queries
    spans = list(causal_spans(S - T, length)) if with_prefix else []
    for block_start in range(S - T, S, l_sel):
        block_end = min(S, block_start + l_sel)
        for t0 in range(block_start, block_end, length):
            t1 = min(block_end, t0 + length)
            spans.append(Span(t0=t0, t1=t1, k0=block_start - before, k1=t1))
    gathered = _gathered(free_BGTF, S, l_sel, -(-S // l_sel)) if T else ()
    return Plan(spans=tuple(spans), gathered=gathered)
