"""The steps of the run: how long they take, what each rank reported, and which are complete.

A rank's numbers come from its `progress` and `step_end` lines in whatever order they arrive. Times
are differences of the rank's own monotonic clock, without checkpoint and eval. A step that some
rank never ends (its line was lost) is passed over when a later one is whole.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import Heartbeat, StepSections
from gonogo.contract.records import Tick

WINDOW_STEPS = 256
MOST_OPEN = 256
"""Steps that wait for a rank; beyond that the oldest waits no longer."""


@dataclass(slots=True, kw_only=True)
class StepPace:
    """How long the steps of one boot of one rank take.

    Step times are differences of the rank's own monotonic clock between step ends, without the
    time in checkpoint and eval sections. The first step of a boot (compilation, first batch) is no
    sample. Network delay and a wrong wall clock cannot change these numbers.
    """

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    """Seconds per step of the last `WINDOW_STEPS` samples."""
    last_step: int | None = None
    last_mono: float = 0.0
    stride: int = 1
    """Steps between the last two step ends that were seen."""
    excluded_s: float = 0.0
    """Checkpoint and eval time since the last step end."""
    median_s: float | None = None
    _ordered: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times_s = deque(self.times_s, maxlen=WINDOW_STEPS)
        self._ordered = sorted(self.times_s)

    def end(self, step: int, mono: float) -> float | None:
        """Record that `step` ended at `mono` on the rank's clock; return its seconds if known."""
        before, took_s = self.last_step, mono - self.last_mono - self.excluded_s
        self.last_step, self.last_mono, self.excluded_s = step, mono, 0.0
        if before is None or step <= before or took_s <= 0:
            return None
        self.stride = step - before
        step_s, ordered = took_s / self.stride, self._ordered
        if len(self.times_s) == WINDOW_STEPS:
            del ordered[bisect_left(ordered, self.times_s[0])]
        self.times_s.append(step_s)
        insort(ordered, step_s)
        half = len(ordered) // 2
        middle = ordered[half]
        self.median_s = middle if len(ordered) % 2 else (ordered[half - 1] + middle) / 2
        return step_s if self.stride == 1 else None


@dataclass(slots=True, kw_only=True)
class RankStep:
    """One completed step of one rank; None for what the rank did not report."""

    rank: int
    boot: str
    step: int
    dt_s: float | None
    """Seconds of training since the step end before; None for the first of a boot."""
    progress: Heartbeat | None
    """Its progress line: loss, grad_norm, lr, toks_per_s, dt_fetch_s, memory, gates, skipped."""
    tokens: int | None = None
    sections: StepSections | None = None
    """Seconds by section."""
    between_s: float = 0.0
    """Seconds of `dt_s` before the rank reported that the step began."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One step that every rank has completed, or the first rank if the others are far behind."""

    step: int
    ranks: Mapping[int, RankStep]
    tick: Tick
    """The tick that completed it."""
    again: bool = False
    """Whether a restart in place went back to it or to a step before it."""
    loss: float | None = field(init=False)
    """Ranks report the mean over ranks, so any of them will do."""
    grad_norm: float | None = field(init=False)
    """Gradient norm of an applied step; the same on every rank."""
    applied: bool = field(init=False)
    """Whether every rank's optimizer took the step (fp16 skips some)."""
    slowest_s: float | None = field(init=False)
    """The longest step time of any rank."""

    def __post_init__(self) -> None:
        """Work out once what several detectors ask."""
        lines = [row.progress for row in self.ranks.values() if row.progress is not None]
        times = [row.dt_s for row in self.ranks.values() if row.dt_s is not None]
        self.applied = all(beat.skipped is not True for beat in lines)
        losses = [beat.loss for beat in lines if beat.loss is not None]
        norms = [beat.grad_norm for beat in lines if beat.grad_norm is not None]
        # the first number that is not finite, or else the first
        self.loss = min(losses, key=math.isfinite, default=None)
        norm = min(norms, key=math.isfinite, default=None)
        self.grad_norm = norm if self.applied else None
        self.slowest_s = max(times, default=None)


@dataclass(slots=True)
class Steps:
    """The steps that some ranks have ended and others have not."""

    waiting: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    last: int = 0
    """Highest step that was whole, or that the first rank ended alone."""
    made: int = 0
    """The last step that was made whole, whatever restarted since."""

    def add(self, ended: list[RankStep], needed: int, tick: Tick) -> list[Step]:
        """Add steps of one rank; return those merged that `needed` ranks have ended now."""
        made = []
        for row in ended:
            number = row.step
            if number <= self.last:
                continue
            rows = self.waiting.setdefault(number, {})
            rows[row.rank] = row
            if len(rows) < needed:
                if len(self.waiting) <= MOST_OPEN:
                    continue
                number = min(self.waiting)
                rows = self.waiting.pop(number)
                if 0 not in rows:
                    continue
            for step in [step for step in self.waiting if step <= number]:
                del self.waiting[step]
            self.last, again, self.made = number, number <= self.made, number
            ranks = dict(sorted(rows.items()))
            made.append(Step(step=number, ranks=ranks, tick=tick, again=again))
        return made

    def forget(self, boot: Heartbeat) -> None:
        """Forget what a rank had ended before it restarted, and go back to its step."""
        for number, rows in list(self.waiting.items()):
            rows.pop(boot.rank, None)
            if not rows:
                del self.waiting[number]
        self.last = min(self.last, boot.step)
