"""How long may a run take to leave by itself? Its last steps and its checkpoints say so.

Two times the longest of its last five steps, and its longest checkpoint so far. A run without a
step gets the time to start up.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.supervise.watcher.step_times import StepTimes
from gonogo.timeline.lines import Arrival

UNKNOWN_CHECKPOINT_S = 30.0
UNKNOWN_STEP_S = 30.0
LAST_STEPS = 5
MOST_S = 1e9


@dataclass(slots=True)
class Pace:
    """Durations of the latest steps and of the longest checkpoint, in seconds."""

    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))
    checkpoint_s: float | None = None
    times: StepTimes = field(default_factory=StepTimes)
    """Of all steps, for Prometheus."""

    def take(self, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        """Take a line as the timeline gives it."""
        if beat.msg == Msg.STEP_END:
            seconds = _usable(beat.dt_step_s)
            if seconds is not None:
                self.steps_s.append(seconds)
                self.times.add(seconds)
        elif beat.msg == Msg.CHECKPOINT:
            seconds = _usable(beat.dt)
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
        """Go on from what `document` returned."""
        self.steps_s.extend(document["steps_s"])
        self.checkpoint_s = document["checkpoint_s"]
        times = StepTimes.model_validate(document["histogram"])
        self.times = times if times.fits else StepTimes()

    def leaving_s(self) -> float:
        """Return how long the ranks may take to leave with a checkpoint."""
        checkpoint_s = UNKNOWN_CHECKPOINT_S if self.checkpoint_s is None else self.checkpoint_s
        step_s = max(self.steps_s, default=UNKNOWN_STEP_S)
        return 2.0 * step_s + max(2.0, 2.0 * checkpoint_s)


def _usable(seconds: float | None) -> float | None:
    """Return seconds that can be a duration."""
    return seconds if seconds is not None and 0 <= seconds < MOST_S else None
