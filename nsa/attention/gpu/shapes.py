"""The sizes of a call, and which keys each of its bands sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

from nsa.attention import selection_rule
from nsa.attention.gpu.packed import Packed
from nsa.attention.gpu.tiles import padded

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
            "BLOCK": self.block, "KEYS": 2 if self.branch == 0 else 0,
        }  # fmt: skip

    @property
    def key_tiles(self) -> str:
        """The tiles of its keys where sequences are packed."""
        return "block_keys" if self.branch == 0 else "keys"

    def chunk(self, S: int, programs: int) -> int:
        """Queries that one program of the backward pass over keys walks over, at most.

        Args:
            S: Queries.
            programs: Programs where each walks over all of them.
        """
        if self.prefix < S:  # few queries see a key
            return S
        parts = min(triton.cdiv(_PROGRAMS, max(1, programs)), triton.cdiv(S, _CHUNK_QUERIES))
        return triton.cdiv(S, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one call; the queries from `start` on choose `free` blocks by score.

    Of packed sequences B is 1 and S the longest; their tokens lie in one [1, T, ...].
    """

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
    packed: Packed | None = None

    @property
    def pairs(self) -> int:
        """(Batch item, group) pairs; groups of packed sequences."""
        return self.B * self.G

    @property
    def late(self) -> int:
        """Queries of a pair that choose blocks."""
        return self.S - self.start if self.packed is None else self.packed.late

    @property
    def free(self) -> int:
        """Blocks chosen by score."""
        return selection_rule.RULE.free(self.n_sel)

    @property
    def gathered_blocks(self) -> int:
        """Blocks of a query that are met block by block: the first ones and the free ones."""
        return selection_rule.RULE.first + self.free

    @property
    def blocks(self) -> int:
        """Selection blocks of the longest sequence, a last short one included."""
        return -(-self.S // self.l_sel)

    @property
    def pair_blocks(self) -> int:
        """Selection blocks of a pair."""
        return self.blocks if self.packed is None else self.packed.blocks

    @property
    def end(self) -> int:
        """Past the last query that chooses, where they are numbered from `start` on."""
        return self.start + self.late

    def programs(self, name: str, count: int, size: int) -> tuple[int, Tensor | None]:
        """How many tiles of a size `count` rows of a pair make, and whose each tile is.

        Args:
            name: Of the tiles of packed sequences, whose number does not come from a count.
            count: Rows of a pair.
            size: Of a tile.
        """
        tiles = self.table(name)
        return (triton.cdiv(count, size) if tiles is None else len(tiles)), tiles

    def table(self, name: str) -> Tensor | None:
        """What the kernels read of packed sequences; nothing of one length."""
        return None if self.packed is None else getattr(self.packed, name)

    def constants(self) -> dict[str, Any]:
        """What all kernels over rows share."""
        packed = self.packed is not None
        return {"R": self.R, "D": self.D, "DP": padded(self.D), "PACKED": packed}
