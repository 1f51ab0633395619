"""The blocks that every query selects, whatever their scores.

`RULE` is read at each call by every backend; `docs/how-to/nsa-attention.md` shows how to change
it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRule:
    """The blocks that every query selects, as far as they are there.

    Attributes:
        first: Blocks from the beginning of the sequence, at least 1.
        recent: Blocks up to the query's own, which is one of them, at least 1.
    """

    first: int = 1
    recent: int = 2

    def __post_init__(self) -> None:
        if min(self.first, self.recent) < 1:
            raise ValueError(f"a query selects its own block and the first, got {self}")

    @property
    def least(self) -> int:
        """The smallest n_sel: none is chosen by score then."""
        return self.first + self.recent

    def forced(self, c: int) -> list[int]:
        """The blocks of a query in block c that are selected by rule, ascending."""
        return sorted({*range(min(self.first, c + 1)), *range(max(0, c - self.recent + 1), c + 1)})

    def free(self, n_sel: int) -> int:
        """How many blocks are chosen by score."""
        return n_sel - self.least


RULE = SelectionRule()
"""That of the paper: the first block, the query's own and the one before."""
