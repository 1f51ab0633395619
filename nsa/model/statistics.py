"""Statistics of the gates and of the selected blocks of the last forward pass.

Selections are counted for the queries that had a choice: those before n_sel · l_sel select
everything. The forced blocks are left out.
Shapes: B batch, S positions, G groups, N selected blocks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa.attention.tensors import FIRST, FORCED, RECENT
from nsa.model.transformer import LanguageModel

_COLLAPSED_ENTROPY = 0.18
_COLLAPSED_SHARE = 0.9
COLUMNS = ("distance_blocks", "distinct_share", "kept_share")


def gate_stats(model: LanguageModel) -> Tensor:
    """Mean normalised entropy and mean largest share of every layer, `[layers, 2]` on the device.

    `[0, 2]` where none are kept.
    """
    found = (attention.gate_stats for attention in model.sparse())
    stats = [numbers for numbers in found if numbers is not None]
    return torch.stack(stats) if stats else torch.zeros(0, 2, device=model.rotation.device)


def gate_rows(numbers: Sequence[float]) -> list[tuple[float, float]]:
    """`(entropy, share)` of every layer, of `gate_stats` row by row."""
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def gate_health(rows: list[tuple[float, float]]) -> dict[str, float]:
    """Gate fields of a progress line; empty when statistics are off or attention is dense.

    Shares are gates divided by their sum over the branches. `gate_entropy` is the mean entropy of
    the shares in units of ln 3 (1 = equal, 0 = one branch has all). `gate_max` is the largest share
    of any layer. `gate_collapse_frac` is the fraction of layers below 0.18 or above 0.9.
    """
    if not rows:
        return {}
    collapsed = [
        entropy < _COLLAPSED_ENTROPY or share > _COLLAPSED_SHARE for entropy, share in rows
    ]
    return {
        "gate_entropy": sum(entropy for entropy, _ in rows) / len(rows),
        "gate_max": max(share for _, share in rows),
        "gate_collapse_frac": sum(collapsed) / len(rows),
    }


def selection_stats(ids_BSGN: Tensor, l_sel: int) -> Tensor:
    """`COLUMNS` of one layer, float64.

    Args:
        ids_BSGN: selected block ids, ascending, -1 padded at the end.
        l_sel: tokens in a selection block.

    Returns:
        `[3]`. First: mean distance of a free block from the query's own, in blocks. Second:
        the share of all blocks that any query chose freely. Third: the share of a query's free
        blocks that the query before it also chose freely. NaN if no query had a choice.
    """
    _, S, G, N = ids_BSGN.shape
    start = N * l_sel
    if start + 1 >= S or FORCED == N:
        return torch.full((len(COLUMNS),), torch.nan, dtype=torch.float64, device=ids_BSGN.device)
    free = ids_BSGN[:, start:, :, FIRST:-RECENT]
    own = torch.arange(start, S, device=free.device)[:, None, None] // l_sel
    blocks = -(-S // l_sel)
    groups = torch.arange(G, device=free.device)[:, None] * blocks
    chosen = torch.bincount((free + groups).flatten(), minlength=G * blocks) > 0
    kept = (free[:, 1:, :, :, None] == free[:, :-1, :, None, :]).any(-1)
    parts = ((own - free).double().mean(), chosen.double().mean(), kept.double().mean())
    return torch.stack(parts)


def selection_rows(model: LanguageModel) -> list[list[float]]:
    """`COLUMNS` of every layer; empty where no selection was kept or none had a choice."""
    kept = [(attention.selection, attention.sizes.l_sel) for attention in model.sparse()]
    stats = [selection_stats(ids, l_sel) for ids, l_sel in kept if ids is not None]
    rows: list[list[float]] = torch.stack(stats).tolist() if stats else []
    return [row for row in rows if row[0] == row[0]]
