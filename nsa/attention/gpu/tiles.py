"""Tile sizes of each kernel, by width of the numbers and of the heads.

A table instead of autotuning: runs repeat themselves. All sizes compile for sm_80 and sm_90. Those
for 16 bits and D up to 64 were measured on an H200 (python -m bench.gpu); the others fit.
"""

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One kernel's tile.

    Attributes:
        rows: Rows (query, head) of a tile; all heads of a group are neighbours, so tiles are full
            whatever their number: 128 rows are 21 1/3 queries of 6 heads.
        keys: Keys of a tile.
        warps: Warps of a program.
        stages: Depth of the load pipeline.
        registers: Most registers of a thread, None for as many as the compiler likes: 128 let two
            programs of 8 warps run at once.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    def options(self) -> dict[str, int | None]:
        """Options of a kernel's launch besides the sizes."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The tiles of all kernels for one dtype and head width."""

    forward: Tile
    dq: Tile
    dkdv: Tile
    gathered: Tile
    gathered_backward: Tile
    scores: Tile


def _all(rows: int, keys: int, warps: int, stages: int) -> Tiles:
    tile = Tile(rows=rows, keys=keys, warps=warps, stages=stages)
    return Tiles(
        forward=tile, dq=tile, dkdv=tile, gathered=tile, gathered_backward=tile, scores=tile
    )


_HALF_NARROW = Tiles(
    forward=Tile(rows=128, keys=64, warps=8, stages=3, registers=128),
    dq=Tile(rows=64, keys=64, warps=4, stages=3),
    dkdv=Tile(rows=128, keys=64, warps=4, stages=2),
    gathered=Tile(rows=128, keys=64, warps=8, stages=2),
    gathered_backward=Tile(rows=128, keys=64, warps=4, stages=2),
    scores=Tile(rows=64, keys=64, warps=4, stages=2),
)

# (bytes of a number, padded head width) -> tiles.
_TABLE: dict[tuple[int, int], Tiles] = {
    **{(2, width): _HALF_NARROW for width in (16, 32, 64)},
    (2, 128): _all(64, 64, 4, 2),
    (2, 256): _all(32, 32, 4, 1),
    **{(4, width): _all(32, 32, 4, 1) for width in (16, 32, 64)},
    (4, 128): _all(16, 32, 4, 1),
    (4, 256): _all(16, 16, 4, 1),
}


def padded(size: int) -> int:
    """The power of two, at least 16, that a side of a matrix product needs."""
    return max(16, 1 << (size - 1).bit_length())


@functools.cache
def tiles_for(dtype: torch.dtype, head_width: int) -> Tiles:
    """The row of the table for a dtype of 2 or 4 bytes and a head width up to 256."""
    return _TABLE[dtype.itemsize, padded(head_width)]
