"""Durations of a run's steps and checkpoints, as its heartbeats give them."""

import bisect
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.timeline.lines import Arrival

UNKNOWN_CHECKPOINT_S = 30.0
UNKNOWN_STEP_S = 30.0
LAST_STEPS = 5
MOST_S = 1e9
BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 60.0, 120.0, 300.0, 600.0, math.inf),
)
"""Upper bounds of the histogram's buckets in seconds, inclusive."""


class StepTimes(BaseModel):
    """A histogram of step durations, for Prometheus."""

    model_config = ConfigDict(extra="ignore")

    sum: float = 0.0
    """Seconds of all steps."""
    counts: list[Annotated[int, Field(ge=0, lt=2**53)]] = Field(
        default_factory=lambda: [0] * len(BOUNDS_S)
    )
    """Of each bucket, not cumulated."""

    def add(self, seconds: float) -> None:
        """Count a step."""
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sum += seconds

    @property
    def fits(self) -> bool:
        """Whether it has the buckets of this release."""
        return len(self.counts) == len(BOUNDS_S)

    def cumulated(self) -> list[tuple[str, int]]:
        """Return bound → steps that took no longer, as Prometheus writes both."""
        total, found = 0, []
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == math.inf else str(bound), total))
        return found


@dataclass(slots=True)
class Pace:
    """Durations of the latest steps and of the longest checkpoint, in seconds."""

    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))
    checkpoint_s: float | None = None
    times: StepTimes = field(default_factory=StepTimes)

    def take(self, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        """Take a line as the timeline gives it."""
        if beat.msg == Msg.STEP_END:
            seconds = _valid(beat.dt_step_s)
            if seconds is not None:
                self.steps_s.append(seconds)
                self.times.add(seconds)
        elif beat.msg == Msg.CHECKPOINT:
            seconds = _valid(beat.dt)
            if seconds is not None:
                self.checkpoint_s = max(seconds, self.checkpoint_s or 0.0)

    def document(self) -> dict[str, Any]:
        """Return the JSON form, for a snapshot."""
        return {
            "steps_s": list(self.steps_s),
            "checkpoint_s": self.checkpoint_s,
            "histogram": self.times.model_dump(),
        }

    def resume(self, document: dict[str, Any]) -> None:
        """Continue from what `document` returned."""
        self.steps_s.extend(document["steps_s"])
        self.checkpoint_s = document["checkpoint_s"]
        times = StepTimes.model_validate(document["histogram"])
        self.times = times if times.fits else StepTimes()

    def leaving_s(self) -> float:
        """Return how long the ranks may take to leave with a checkpoint.

        Two of the longest of the last five steps, and two of the longest checkpoint.
        """
        checkpoint_s = UNKNOWN_CHECKPOINT_S if self.checkpoint_s is None else self.checkpoint_s
        step_s = max(self.steps_s, default=UNKNOWN_STEP_S)
        return 2.0 * step_s + max(2.0, 2.0 * checkpoint_s)


def _valid(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds < MOST_S else None
