"""Which blocks does each query select, and which queries does each block meet?

Queries before n_sel * l_sel select every block up to their own: they are a dense prefix and need
no scores. From there on the blocks of the rule (selection_rule.py) are forced and the rest are
chosen by score, ties to the lower id. Shape legend as in plan.py, and J selection blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention import selection_rule
from nsa.attention.plan import Gathered, Plan, Span, causal_spans, piece_size

_WITHOUT_SIGN, _INFINITY = 0x7FFFFFFF, 0x7F800000
"""Of the bits of a float32."""
_KEYS_AT_ONCE = 2**21
"""Scores that are ranked at once: their keys take twice the room of them, 1 GB at 64k in one."""


def prefix_length(S: int, l_sel: int, n_sel: int) -> int:
    """How many leading queries select everything they may see."""
    return min(S, n_sel * l_sel)


def _best(scores_BGTJ: Tensor, allowed_TJ: Tensor, count: int) -> Tensor:
    """Ids of the `count` best allowed blocks, ties to the lower id: [B, G, T, count]."""
    blocks = scores_BGTJ.shape[-1]
    if scores_BGTJ.dtype == torch.float64:
        ranked = scores_BGTJ.masked_fill(~allowed_TJ, -1.0)
        return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    # The bits of a non-negative float order like the float; the id below them settles ties, and
    # makes the selection of the best of many several times faster than a stable sort.
    ids = torch.arange(blocks, device=scores_BGTJ.device)
    # NaN stands beside infinity, above all, as in that sort: by its sign its bits could stand below
    # blocks that do not exist.
    keys = scores_BGTJ.view(torch.int32).to(torch.int64)
    keys.bitwise_and_(_WITHOUT_SIGN).clamp_(max=_INFINITY).mul_(blocks).add_(blocks - 1 - ids)
    keys.masked_fill_(~allowed_TJ, -1)
    best = keys.topk(count, dim=-1, sorted=False).values
    return blocks - 1 - best.remainder(blocks)


def free_blocks(scores_BGTJ: Tensor, start: int, l_sel: int, n_sel: int) -> Tensor:
    """The blocks chosen by score for the queries from `start` on.

    Args:
        scores_BGTJ: Block scores of the queries start .. S - 1, all >= 0.
        start: First query beyond the dense prefix.
        l_sel: Tokens in a selection block.
        n_sel: Blocks each query selects.

    Returns:
        Ids [B, G, S - start, F] in no particular order, F as many as the rule leaves free.
    """
    B, G, T, blocks = scores_BGTJ.shape
    rule = selection_rule.RULE
    if T == 0:
        return torch.zeros(B, G, 0, rule.free(n_sel), dtype=torch.int64, device=scores_BGTJ.device)
    ids = torch.arange(blocks, device=scores_BGTJ.device)
    at_once = max(1, _KEYS_AT_ONCE // max(1, B * G * blocks))
    chosen = []
    for some in scores_BGTJ.split(at_once, dim=2):
        end = start + some.shape[2]
        current = torch.arange(start, end, device=scores_BGTJ.device)[:, None] // l_sel
        allowed = (ids >= rule.first) & (ids <= current - rule.recent)
        chosen.append(_best(some, allowed, rule.free(n_sel)))
        start = end
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=2)


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
    rule, shape = selection_rule.RULE, free.shape[:-1]
    recent = own - torch.arange(rule.recent, device=free.device)
    first = torch.arange(rule.first, device=free.device)
    parts = (first.expand(*shape, rule.first), free, recent.expand(*shape, rule.recent))
    return torch.cat(parts, dim=-1).sort(dim=-1).values


def ids_at(position_T: Tensor, token_N: Tensor, free_NGF: Tensor, l_sel: int, n_sel: int) -> Tensor:
    """As `selected_ids`, of tokens at any positions: [T, G, n_sel] int64.

    Args:
        position_T: Position of each token in its sequence.
        token_N: Tokens that choose blocks.
        free_NGF: Their choices.
        l_sel: Tokens in a selection block.
        n_sel: Blocks each query selects.
    """
    own_T1 = position_T[:, None] // l_sel
    ids = torch.arange(n_sel, device=position_T.device)
    dense = ids.where(ids <= own_T1, -1)[:, None].repeat(1, free_NGF.shape[1], 1)
    return dense.index_copy_(
        0, token_N, _with_forced(free_NGF, own_T1.index_select(0, token_N)[:, None])
    )


def _gathered(free_BGTF: Tensor, S: int, l_sel: int, blocks: int) -> tuple[Gathered, ...]:
    """Invert "query chose block" into "block meets these queries", the first meeting all."""
    free_NTF = free_BGTF.flatten(0, 1)
    N, T, _ = free_NTF.shape
    chosen = torch.zeros(N, T, blocks, dtype=torch.bool, device=free_NTF.device)
    chosen.scatter_(-1, free_NTF, True)
    chosen[..., : selection_rule.RULE.first] = True
    n, j, t = chosen.transpose(1, 2).nonzero(as_tuple=True)
    counts = torch.bincount(n * blocks + j, minlength=N * blocks).tolist()
    gathered = []
    for number, queries in enumerate((n * S + (S - T) + t).split(counts)):
        pair, block = divmod(number, blocks)
        for part in queries.split(piece_size(queries.device).gathered_queries):
            if len(part):
                keys = {"k0": block * l_sel, "k1": (block + 1) * l_sel}
                gathered.append(Gathered(n=pair, queries=part, **keys))
    return tuple(gathered)


def selected_plan(free_BGTF: Tensor, S: int, l_sel: int, *, with_prefix: bool = True) -> Plan:
    """The pieces of the selected branch: dense prefix, recent blocks, gathered queries.

    Args:
        free_BGTF: Output of `free_blocks`; T = 0 when everything is selected.
        S: Tokens.
        l_sel: Tokens in a selection block.
        with_prefix: Whether the dense prefix is part of the plan.
    """
    T = free_BGTF.shape[2]
    before = (selection_rule.RULE.recent - 1) * l_sel
    length = piece_size(free_BGTF.device).span_queries
    spans = list(causal_spans(S - T, length)) if with_prefix else []
    for block_start in range(S - T, S, l_sel):
        block_end = min(S, block_start + l_sel)
        for t0 in range(block_start, block_end, length):
            t1 = min(block_end, t0 + length)
            spans.append(Span(t0=t0, t1=t1, k0=block_start - before, k1=t1))
    gathered = _gathered(free_BGTF, S, l_sel, -(-S // l_sel)) if T else ()
    return Plan(spans=tuple(spans), gathered=gathered)
