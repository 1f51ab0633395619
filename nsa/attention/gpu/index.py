"""Invert the selection on the device: the entries that met each block.

An *entry* is one choice: query t of pair n = b * G + g chose a block in slot f; its number is
(n * T + (t - start)) * F + f. A *block* is n * J + j. Entries are sorted by block and cut into
portions of rows (entry, head). As many programs start as there could be portions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
