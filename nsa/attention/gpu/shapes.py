"""The sizes of a call, and which keys each of its bands sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton

from nsa.attention.gpu.tiles import padded
from nsa.attention.tensors import FIRST, FORCED

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
