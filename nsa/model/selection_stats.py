"""What do the layers look at? Statistics of the selected blocks of the last forward pass.

Counted over all layers, for the queries that had a choice: those before n_sel · l_sel select
everything. Of a query's blocks the first, its own and the one before are forced and left out.
Shapes: B batch, S positions, G groups, N selected blocks, F = N - 3 free ones, T free queries.
"""

import torch
from torch import Tensor

from nsa.attention.module import NativeSparseAttention
from nsa.model.transformer import LanguageModel

COLUMNS = ("distance_blocks", "distinct_share", "kept_share")
_FORCED = 3


def selection_stats(ids_BSGN: Tensor, l_sel: int) -> Tensor:
    """`COLUMNS` of one layer, float64.

    Args:
        ids_BSGN: selected block ids, ascending, -1 padded at the end.
        l_sel: tokens in a selection block.

    Returns:
        `[3]`: mean distance of a free block from the query's own, in blocks; the share of the
        blocks there are that any query chose freely; the share of a query's free blocks that the
        query before it chose freely too. NaN where no query had a choice.
    """
    _, S, G, N = ids_BSGN.shape
    start = N * l_sel
    if start + 1 >= S or N == _FORCED:
        return torch.full((len(COLUMNS),), torch.nan, dtype=torch.float64, device=ids_BSGN.device)
    free = ids_BSGN[:, start:, :, 1:-2]
    own = torch.arange(start, S, device=free.device)[:, None, None] // l_sel
    blocks = -(-S // l_sel)
    groups = torch.arange(G, device=free.device)[:, None] * blocks
    chosen = torch.bincount((free + groups).flatten(), minlength=G * blocks) > 0
    kept = (free[:, 1:, :, :, None] == free[:, :-1, :, None, :]).any(-1)
    parts = ((own - free).double().mean(), chosen.double().mean(), kept.double().mean())
    return torch.stack(parts)


def selection_rows(model: LanguageModel) -> list[list[float]]:
    """`COLUMNS` of every layer; empty where no selection was kept or none had a choice."""
    kept = [
        (block.attention.selection, block.attention.sizes.l_sel)
        for block in model.layers()
        if isinstance(block.attention, NativeSparseAttention)
    ]
    stats = [selection_stats(ids, l_sel) for ids, l_sel in kept if ids is not None]
    rows: list[list[float]] = torch.stack(stats).tolist() if stats else []
    return [row for row in rows if row[0] == row[0]]
