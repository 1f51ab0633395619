"""Do steps carry more tokens than they did? Batch ramps and longer sequences, as the lines tell.

Trainers count differently (of one rank, of all, with padding or without), and may be wrong; so what
a line tells is held against what the first lines told, not against what was ordered, unless they
told that, too: a ramp may begin with the second step. A trainer that always tells 25 times as many
as were ordered has grown by nothing. Nor has one that tells the tokens of the whole run so far: its
steps carry what the number grows by. Sequences that grow with every step look so, too, but come to
no more than what was ordered; without that nobody knows.
A restart in place tells again what it makes again: of first lines that may be sums, those count no
more that told as much.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gonogo.watch.state import replace

FIRST_LINES = 16
FIRST_X = 3.0
"""A number that rises with each of the first lines, and began at no more than so many times what it
rises by, may be a sum."""
RISING_SHARE = 0.95
"""Of the lines of a sum so many rise at least: a step may be left out, or an epoch begin anew."""
ANEW_SHARE = 0.6
"""Of many lines so many rise where all that fall begin anew: an epoch, or what a log line tells of,
may be three steps long."""
EVEN_LINES = 48
"""Of fewer lines those that begin anew lie equally far apart, as epochs do: batches of any size
rise and fall by chance so that a few may look like sums, but not at equal distances."""
RAMP_X = 2.0
"""First lines of which the median is more times what was ordered are in another unit, not of a ramp
that began with it."""
SUM_X = 2.0
"""It is one once it is so many times what was ordered for a step."""


def rise_of_sums(tokens: Sequence[int], first_step: int = 1) -> float | None:
    """Return what the numbers of steps, two at least, rise by that may be sums; else None.

    Args:
        tokens: that the lines told, in the order of their steps.
        first_step: of the first of them; what goes on from a checkpoint may count those before.
    """
    steps = [later - earlier for earlier, later in pairwise(tokens)]
    rises_by = statistics.median(steps)
    rising, falling = sum(step > 0 for step in steps), sum(step < 0 for step in steps)
    most = RISING_SHARE * len(steps)
    many = len(tokens) >= FIRST_LINES and rising >= ANEW_SHARE * len(steps)
    if many and (len(tokens) >= EVEN_LINES or _falls_evenly(steps)):
        rising += falling
    begun = (later for earlier, later in pairwise(tokens) if later < earlier)
    anew = max(begun, default=0) <= FIRST_X * rises_by
    goes_on = tokens[0] <= FIRST_X * rises_by * max(1, first_step)
    return rises_by if rising >= most and anew and goes_on else None


def _falls_evenly(steps: Sequence[int]) -> bool:
    falls = [number for number, step in enumerate(steps) if step < 0]
    return len({later - earlier for earlier, later in pairwise(falls)}) <= 1


def _rises(tokens: Sequence[int]) -> bool:
    return all(later > earlier for earlier, later in pairwise(tokens))


def _usual(first: Sequence[int], ordered: int | None) -> float:
    """Return what the first lines told for a step: what was ordered, where they told it, or nearly.

    Those of a ramp that begins at once, or of sequences of any length, have their median elsewhere.
    """
    told = statistics.median(first)
    if ordered is None or told > RAMP_X * ordered:
        return told
    return min(told, max(ordered, min(first)))


@dataclass(frozen=True, kw_only=True)
class TokenGrowth:
    """Tokens of a step, against those of the first steps that told them."""

    first: tuple[int, ...] = ()
    """Collected until there are enough; then only `usual` counts. Until then growth is known where
    it is known what was ordered: of a program that tells of every tenth step 16 lines are 160."""
    again: bool = False
    """Whether those before a restart in place may be told again."""
    usual: float | None = None
    ratio: float = 1.0
    """Of the last step that told its tokens."""
    rises_by: float | None = None
    """What the first lines rose by, where they may have told sums."""
    before: int = 0
    """What the line before told."""
    sums: bool = False
    """Whether lines are known to tell sums."""
    step: int = 0
    """Of the last line that told tokens, where that is known."""

    def after(
        self, tokens: int | None, ordered: int | None = None, *, step: int | None = None
    ) -> "TokenGrowth":
        """Return the growth after one more step; what is not told changes nothing.

        Nor does what was told before: who tells of every tenth step has told of one.

        Args:
            tokens: that a line told.
            ordered: for a step.
            step: of that line; None = of a step that was not counted yet.
        """
        if not tokens or tokens < 0 or (step is not None and step <= self.step):
            return self
        grown = self._after(tokens, ordered)
        return grown if step is None else replace(grown, step=step)

    def _after(self, tokens: int, ordered: int | None) -> "TokenGrowth":
        if self.usual is not None:
            return self._counted(tokens, self.usual, ordered)
        again = self.again and _rises(self.first) and tokens <= self.first[-1]
        if again:
            first = (*(told for told in self.first if told < tokens), tokens)
        else:
            first = (*self.first, tokens)
        if len(first) < FIRST_LINES:
            clear = ordered is not None and len(first) > 1 and rise_of_sums(first) is None
            ratio = tokens / _usual(first, ordered) if clear else 1.0
            return replace(self, first=first, again=self.again and not again, ratio=ratio)
        usual = _usual(first, ordered)
        known = TokenGrowth(usual=usual, rises_by=rise_of_sums(first), before=first[-2])
        return known._counted(tokens, usual, ordered)

    def restarted(self) -> "TokenGrowth":
        """Return the growth after a restart in place: what is known stays."""
        return replace(self, again=bool(self.first), step=0)

    def _counted(self, tokens: int, usual: float, ordered: int | None) -> "TokenGrowth":
        """Return the growth after a step, once it is known what is usual."""
        if self.rises_by is None:
            return replace(self, ratio=tokens / usual)
        more = tokens - self.before
        if not self.sums and tokens <= SUM_X * (ordered or math.inf):
            return replace(self, ratio=tokens / usual, before=tokens)
        ratio = self.ratio if self.sums else 1.0
        if more > 0:  # else it began anew
            ratio = more / self.rises_by
        return replace(self, ratio=ratio, before=tokens, sums=True)
