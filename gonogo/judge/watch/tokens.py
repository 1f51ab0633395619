"""Do steps carry more tokens than they did? Batch ramps and longer sequences, as the lines tell.

Trainers count differently (of one rank, of all, with padding or without), and may be wrong; so what
a line tells is held against what the first lines told, never against what was ordered. A trainer
that always tells 25 times as many as were ordered has grown by nothing. Nor has one that tells the
tokens of the whole run so far: its steps carry what the number grows by.
"""

import statistics
from dataclasses import dataclass
from itertools import pairwise

from gonogo.judge.watch.state import replace

FIRST_LINES = 16
FIRST_X = 3.0
"""A number that rises with each of the first lines, and began at no more than so many times what it
rises by, is a sum: batches do not grow fivefold within sixteen steps, one by one."""


@dataclass(frozen=True, kw_only=True)
class TokenGrowth:
    """Tokens of a step, against those of the first steps that told them."""

    first: tuple[int, ...] = ()
    """Collected until there are enough; then only `usual` counts."""
    usual: float | None = None
    ratio: float = 1.0
    """Of the last step that told its tokens."""
    sum_before: int | None = None
    """What the line before told, where lines tell sums."""

    def after(self, tokens: int | None) -> "TokenGrowth":
        """Return the growth after one more step; what is not told changes nothing."""
        if not tokens or tokens < 0:
            return self
        if self.usual is not None and self.sum_before is not None:
            more = tokens - self.sum_before
            ratio = more / self.usual if more > 0 else self.ratio  # less: it began anew
            return replace(self, ratio=ratio, sum_before=tokens)
        if self.usual is not None:
            return replace(self, ratio=tokens / self.usual)
        first = (*self.first, tokens)
        if len(first) < FIRST_LINES:
            return replace(self, first=first)
        grown_by = [later - earlier for earlier, later in pairwise(first)]
        usual = statistics.median(grown_by)
        if min(grown_by) > 0 and first[0] <= FIRST_X * usual:
            return TokenGrowth(usual=usual, ratio=grown_by[-1] / usual, sum_before=tokens)
        usual = statistics.median(first)
        return TokenGrowth(usual=usual, ratio=tokens / usual)

    def of_step(self, told: int | None) -> float | None:
        """Return the tokens of the last step, of which its line told so many."""
        if self.sum_before is None or self.usual is None:
            return told
        return self.ratio * self.usual
