"""Turn selected block ids into merged ranges [start, end) within [0, t + 1) (R43).

V1 loops over one query's ids; V2 takes all queries at once. Both drop ids that do not exist one by
one, remove doubles, cut the last block at t and merge neighbours, so both give the same.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranges_v1(ids: list[int], t: int, l_sel: int) -> list[tuple[int, int]]:
    """The ranges of one query at t, ascending, disjoint and not touching, within [0, t + 1).

    Block ids may be in any order; doubles and ids that do not exist are dropped.
    """
    merged: list[tuple[int, int]] = []
    for block in sorted({block for block in ids if block >= 0 and block * l_sel <= t}):
        start, end = block * l_sel, min((block + 1) * l_sel, t + 1)
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def ranges_v2(ids_XN: Tensor, t_X: Tensor, l_sel: int) -> Tensor:
    """The ranges of many queries as by `ranges_v1`, padded at the end with (0, 0): [..., N, 2]
    int64.
    """
    t_X1 = t_X.to(torch.int64).expand(ids_XN.shape[:-1])[..., None]
    exists = (ids_XN >= 0) & (ids_XN * l_sel <= t_X1)
    # Behind every real id, so that those which do not exist sort to the end.
    nowhere = t_X1 // l_sel + 2
    blocks = ids_XN.to(torch.int64).where(exists, nowhere).sort(dim=-1).values
    real = blocks < nowhere
    before = torch.cat((torch.full_like(blocks[..., :1], -2), blocks[..., :-1]), dim=-1)
    opens = real & (blocks - before > 1)
    slot = (opens.cumsum(-1) - 1).clamp_min(0)
    starts = torch.zeros_like(blocks).scatter_add(-1, slot, (blocks * l_sel).where(opens, 0))
    ends = torch.minimum((blocks + 1) * l_sel, t_X1 + 1).where(real, 0)
    ends = torch.zeros_like(blocks).scatter_reduce(-1, slot, ends, "amax")
    return torch.stack((starts, ends), dim=-1)


def positions_in(ranges_XN2: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The tokens of the padded ranges of `ranges_v2`, ascending; at most `most` of a query.

    Returns:
        Positions [..., most] int64 (0 where there is none) and which of them are real.
    """
    starts, ends = ranges_XN2.unbind(-1)
    filled = (ends - starts).cumsum(-1)
    number = torch.arange(most, device=starts.device).expand(*starts.shape[:-1], most)
    inside = torch.searchsorted(filled, number.contiguous(), right=True)
    real = inside < starts.shape[-1]
    inside = inside.clamp_max(starts.shape[-1] - 1)
    skipped = (filled - (ends - starts)).gather(-1, inside)
    return (starts.gather(-1, inside) + number - skipped).where(real, 0), real
