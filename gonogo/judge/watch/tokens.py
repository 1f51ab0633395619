"""Do steps carry more tokens than they did? Batch ramps and longer sequences, as the lines tell.

Trainers count differently (of one rank, of all, with padding or without), and may be wrong; so what
a line tells is held against what the first lines told, never against what was ordered. A trainer
that always tells 25 times as many as were ordered has grown by nothing.
"""

import statistics
from dataclasses import dataclass

from gonogo.judge.watch.state import replace

FIRST_LINES = 16


@dataclass(frozen=True, kw_only=True)
class TokenGrowth:
    """Tokens of a step, against those of the first steps that told them."""

    first: tuple[int, ...] = ()
    """Collected until there are enough; then only `usual` counts."""
    usual: float | None = None
    ratio: float = 1.0
    """Of the last step that told its tokens."""

    def after(self, tokens: int | None) -> "TokenGrowth":
        """Return the growth after one more step; what is not told changes nothing."""
        if not tokens or tokens < 0:
            return self
        if self.usual is not None:
            return replace(self, ratio=tokens / self.usual)
        first = (*self.first, tokens)
        if len(first) < FIRST_LINES:
            return replace(self, first=first)
        usual = statistics.median(first)
        return TokenGrowth(usual=usual, ratio=tokens / usual)
