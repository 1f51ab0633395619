"""One step of the run: what each rank reported of it, once all of them have ended it.

A rank's numbers come from its `progress` and `step_end` lines in whatever order they arrive. Times
are differences of the rank's own monotonic clock, without checkpoint and eval.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, StepSections
from gonogo.contract.tick import Tick

MOST_APART = 1024
"""Steps within which a step of only some ranks is passed over: lines of the others came late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One completed step of one rank; None for what the rank did not report."""

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
    """Seconds of `dt_s` before the rank reported that the step began."""

    @property
    def sections(self) -> StepSections | None:
        """Seconds by section."""
        return self.end.step_sections


@dataclass(kw_only=True)
class Step:
    """One step that every rank has completed, or the first rank if the others are far behind."""

    step: int
    ranks: Mapping[int, RankStep]
    tick: Tick
    """The tick that completed it."""
    whole: bool
    """Whether every ordered rank is in it; False if one is so far behind that nobody waits."""
    again: bool = False
    """Whether a restart in place went back to it or to a step before it."""
    applied: bool = field(init=False)
    """Whether every rank's optimizer took the step (fp16 skips some)."""
    loss: float | None = field(init=False)
    """The loss; ranks report the mean over ranks, so any of them will do."""
    grad_norm: float | None = field(init=False)
    """The gradient norm of an applied step; the same on every rank."""

    def __post_init__(self) -> None:
        """Work out once what several detectors ask."""
        told = [row.progress for row in self.ranks.values() if row.progress is not None]
        times = [row.dt_s for row in self.ranks.values() if row.dt_s is not None]
        self.applied = all(beat.skipped is not True for beat in told)
        self.loss = _any([beat.loss for beat in told])
        self.grad_norm = _any([beat.grad_norm for beat in told]) if self.applied else None
        self._slowest_s = max(times, default=None)
        self._median_s = statistics.median(times) if times else None

    def lacks(self, ranks: Collection[int], last_step: int) -> bool:
        """Whether it is of some of these ranks alone, and they all ended one not long before."""
        fewer = len(self.ranks) < len(ranks) and self.ranks.keys() < set(ranks)
        return fewer and 0 < self.step - last_step <= MOST_APART

    def values(self, of: Callable[[Heartbeat], float | None]) -> dict[int, float]:
        """Return rank → a number of its progress line, if it reported one."""
        found = {}
        for rank, row in self.ranks.items():
            value = None if row.progress is None else of(row.progress)
            if value is not None:
                found[rank] = value
        return found

    def slowest_s(self) -> float | None:
        """Return the longest step time of any rank, in seconds."""
        return self._slowest_s

    def median_s(self) -> float | None:
        """Return the median step time over ranks, in seconds."""
        return self._median_s


def _any(values: list[float | None]) -> float | None:
    """Return the first number, or the first that is not finite if there is one."""
    found = [value for value in values if value is not None]
    bad = (value for value in found if not math.isfinite(value))
    return next(bad, found[0] if found else None)
