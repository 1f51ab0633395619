"""Durations of a run's steps and checkpoints, as its heartbeats give them."""

import bisect
import math
from typing import Annotated

from pydantic import BaseModel, Field

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

    sum: float = 0.0
    """Seconds of all steps."""
    counts: list[Annotated[int, Field(ge=0, lt=2**53)]] = Field(
        default_factory=lambda: [0] * len(BOUNDS_S),
        min_length=len(BOUNDS_S),
        max_length=len(BOUNDS_S),
    )
    """Steps of each bucket, not cumulated."""

    def add(self, seconds: float) -> None:
        """Count a step."""
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, int]]:
        """Return bound → steps that took no longer, as Prometheus writes both."""
        total, found = 0, []
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == math.inf else str(bound), total))
        return found


class Pace(BaseModel):
    """Durations of the latest steps and of the longest checkpoint, in seconds."""

    steps_s: list[float] = []
    checkpoint_s: float | None = None
    times: StepTimes = Field(default_factory=StepTimes)

    def take(self, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        """Take a line as the timeline gives it."""
        seconds = beat.dt_step_s if beat.msg == Msg.STEP_END else beat.dt
        if seconds is None or not 0 <= seconds < MOST_S:
            return
        if beat.msg == Msg.STEP_END:
            self.steps_s = [*self.steps_s, seconds][-LAST_STEPS:]
            self.times.add(seconds)
        elif beat.msg == Msg.CHECKPOINT:
            self.checkpoint_s = max(seconds, self.checkpoint_s or 0.0)

    def leaving_s(self) -> float:
        """Return how long the ranks may take to leave with a checkpoint.

        Two of the longest of the last five steps, and two of the longest checkpoint.
        """
        checkpoint_s = UNKNOWN_CHECKPOINT_S if self.checkpoint_s is None else self.checkpoint_s
        step_s = max(self.steps_s, default=UNKNOWN_STEP_S)
        return 2.0 * step_s + max(2.0, 2.0 * checkpoint_s)
