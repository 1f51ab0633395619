"""The sizes of a call, and which keys each of its bands sees."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from nsa.attention.tensors import FIRST, FORCED


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
    dkdv=Tile(rows=64, keys=64, warps=4, stages=2),
    gathered=Tile(rows=128, keys=64, warps=8, stages=2),
    gathered_backward=Tile(rows=64, keys=64, warps=4, stages=2),
    scores=Tile(rows=64, keys=64, warps=4, stages=2),
)
# With four warps ptxas spilled in both kernels; with a second stage it serialised dkdv's products.
_HALF_WIDE = replace(
    _all(64, 64, 4, 2),
    dkdv=Tile(rows=64, keys=64, warps=8, stages=1),
    gathered_backward=Tile(rows=64, keys=64, warps=8, stages=2),
)

# (bytes of a number, padded head width) -> tiles.
_TABLE: dict[tuple[int, int], Tiles] = {
    **{(2, width): _HALF_NARROW for width in (16, 32, 64)},
    (2, 128): _HALF_WIDE,
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


# The sums over the queries of a key are shared among programs until there are so many of them, but
# a program keeps so many queries. A rule of shapes alone: results repeat.
_PROGRAMS = 1024
_CHUNK_QUERIES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Which keys a band sees (see band.py).

    Attributes:
        branch: Column of its gate.
        prefix, align, back, stride, reach: The rule of positions.
        block: Tokens of the blocks that a word of bits chooses among, 0 where nothing is chosen.
        summed: Whether more is added to dk and dv, which are fp32 then.
    """

    branch: int
    prefix: int
    align: int = 1
    back: int = 0
    stride: int = 1
    reach: int = 0
    block: int = 0
    summed: bool = False

    def constants(self) -> dict[str, int]:
        """The rule as the kernels' compile-time constants."""
        return {
            "ALIGN": self.align, "BACK": self.back, "STRIDE": self.stride, "REACH": self.reach,
            "BLOCK": self.block,
        }  # fmt: skip

    def chunk(self, S: int, programs: int) -> int:
        """Queries that one program of the backward pass over keys walks over, at most."""
        if self.prefix < S:  # few queries see a key
            return S
        parts = min(triton.cdiv(_PROGRAMS, max(1, programs)), triton.cdiv(S, _CHUNK_QUERIES))
        return triton.cdiv(S, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one call; the queries from `start` on choose `free` blocks by score."""

    B: int
    S: int
    G: int
    R: int
    D: int
    l: int  # noqa: E741
    d: int
    l_sel: int
    n_sel: int
    start: int
    scale: float

    @property
    def pairs(self) -> int:
        """(Batch item, group) pairs."""
        return self.B * self.G

    @property
    def late(self) -> int:
        """Queries of a pair that choose blocks."""
        return self.S - self.start

    @property
    def free(self) -> int:
        """Blocks chosen by score."""
        return self.n_sel - FORCED

    @property
    def gathered_blocks(self) -> int:
        """Blocks of a query that are met block by block: the first ones and the free ones."""
        return FIRST + self.free

    @property
    def blocks(self) -> int:
        """Selection blocks of a sequence, a last short one included."""
        return -(-self.S // self.l_sel)

    def constants(self) -> dict[str, Any]:
        """What all kernels over rows share."""
        return {"R": self.R, "D": self.D, "DP": padded(self.D)}
