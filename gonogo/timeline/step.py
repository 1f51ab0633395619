"""What was one step of the run? What each rank said of it, once all of them have ended it.

A rank's numbers come from its `progress` and `step_end` lines in whatever order they arrive; times
are differences of the rank's own monotonic clock, checkpoint and eval taken out.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from gonogo.contract.heartbeat import Heartbeat, StepSections
from gonogo.contract.tick import Tick

_LOSS, _GRAD_NORM = attrgetter("loss"), attrgetter("grad_norm")
MOST_APART = 1024
"""Steps for which those that are not every rank's are passed over by who compares ranks: lines of
some came late, and come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One completed step of one rank; None where the rank did not say."""

    rank: int
    boot: str
    mono: float
    """The rank's own clock at the end of the step."""
    dt_s: float | None
    """Seconds of training since the step end before; None for the first of a boot."""
    progress: Heartbeat | None
    """Its progress line: loss, grad_norm, lr, toks_per_s, dt_fetch_s, memory, gates, skipped."""
    end: Heartbeat
    """Its step_end line: tokens, step_sections."""
    between_s: float = 0.0
    """Seconds of `dt_s` before the rank said that the step began."""

    @property
    def sections(self) -> StepSections | None:
        """Seconds by section."""
        return self.end.step_sections

    @property
    def applied(self) -> bool:
        """Whether the optimizer took the step (fp16 skips some)."""
        return self.progress is None or self.progress.skipped is not True


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that every rank has completed, or the first, where it is far from the others.

    What several detectors ask is worked out once.
    """

    step: int
    ranks: Mapping[int, RankStep]
    tick: Tick
    """The tick that completed it."""
    whole: bool
    """Whether every ordered rank is in it; False where nobody ordered how many there are, or where
    one is so far behind that nobody waits for it."""

    def lacks(self, ranks: Collection[int], last_step: int) -> bool:
        """Whether it is of some of these ranks alone, and they all ended one not long before."""
        fewer = len(self.ranks) < len(ranks) and self.ranks.keys() < set(ranks)
        return fewer and 0 < self.step - last_step <= MOST_APART

    def values(self, of: Callable[[Heartbeat], float | None]) -> dict[int, float]:
        """Return rank → a number of its progress line, where it said one."""
        found = {}
        for rank, row in self.ranks.items():
            value = None if row.progress is None else of(row.progress)
            if value is not None:
                found[rank] = value
        return found

    def loss(self) -> float | None:
        """Return the loss; ranks say the mean over ranks, so any of them will do."""
        return self._loss

    def grad_norm(self) -> float | None:
        """Return the gradient norm of an applied step; the same on every rank."""
        return self._grad_norm

    def applied(self) -> bool:
        """Whether every rank's optimizer took the step."""
        return self._applied

    def slowest_s(self) -> float | None:
        """Return the longest step time of any rank, in seconds."""
        return max(self._times, default=None)

    def median_s(self) -> float | None:
        """Return the median step time over ranks, in seconds."""
        return self._median_s

    @cached_property
    def _loss(self) -> float | None:
        return self._any(_LOSS)

    @cached_property
    def _grad_norm(self) -> float | None:
        return self._any(_GRAD_NORM) if self._applied else None

    @cached_property
    def _applied(self) -> bool:
        return all(row.applied for row in self.ranks.values())

    @cached_property
    def _times(self) -> list[float]:
        return [row.dt_s for row in self.ranks.values() if row.dt_s is not None]

    @cached_property
    def _median_s(self) -> float | None:
        return statistics.median(self._times) if self._times else None

    def _any(self, of: Callable[[Heartbeat], float | None]) -> float | None:
        found = list(self.values(of).values())
        bad = (value for value in found if not math.isfinite(value))
        return next(bad, found[0] if found else None)
