"""How long may a run take to leave by itself? Told by the pace it had.

Two times the longest of its last five steps, and its longest checkpoint so far; a run that has
not stepped yet gets the time to start up. Fed with raw lines; only those that matter are parsed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import parse_object
from gonogo.supervise.watcher.step_times import StepTimes

UNKNOWN_CHECKPOINT_S = 30.0
UNKNOWN_STEP_S = 30.0
LAST_STEPS = 5


@dataclass(slots=True)
class Pace:
    """Durations of the latest steps and of the longest checkpoint, in seconds."""

    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))
    checkpoint_s: float | None = None
    times: StepTimes = field(default_factory=StepTimes)
    """Of all steps, for Prometheus."""

    def observe(self, lines: Iterable[bytes]) -> None:
        """Take note of a rank's new lines."""
        for line in lines:
            if b'"step_end"' in line:
                self._add_step(_number_in(line, "dt_step_s"))
            elif b'"checkpoint"' in line:
                seconds = _number_in(line, "dt")
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

    def _add_step(self, seconds: float | None) -> None:
        if seconds is None:
            return
        self.steps_s.append(seconds)
        self.times.add(seconds)


def _number_in(line: bytes, name: str) -> float | None:
    """Return a positive number on a heartbeat line."""
    try:
        found = parse_object(line).get(name)
    except Corrupt:
        return None
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e9:
        return float(found)
    return None
