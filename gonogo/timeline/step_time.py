"""How long does a step take? Differences of the rank's own monotonic clock between step ends.

Time spent in checkpoint and eval sections is taken out. The first step of a boot (compilation,
first batch) is no sample. Network delay and a wrong wall clock cannot change these numbers.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

WINDOW_STEPS = 256


@dataclass(slots=True, kw_only=True)
class StepPace:
    """Step times of one boot of one rank."""

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    """Seconds per step of the last `WINDOW_STEPS` samples."""
    last_step: int | None = None
    last_mono: float = 0.0
    stride: int = 1
    """Steps between the last two step ends that were seen."""
    excluded_s: float = 0.0
    """Checkpoint and eval time since the last step end."""
    median_s: float | None = None
    sampled_step: int | None = None
    """The step whose end made the last sample."""
    _ordered: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times_s = deque(self.times_s, maxlen=WINDOW_STEPS)
        self._ordered = sorted(self.times_s)

    def end(self, step: int, mono: float) -> None:
        """Record that `step` ended at `mono` on the rank's clock."""
        if self.last_step is not None and step > self.last_step:
            took_s = mono - self.last_mono - self.excluded_s
            if took_s > 0:
                self.stride, self.sampled_step = step - self.last_step, step
                self._sample(took_s / self.stride)
        self.last_step, self.last_mono, self.excluded_s = step, mono, 0.0

    def _sample(self, step_s: float) -> None:
        ordered = self._ordered
        if len(self.times_s) == WINDOW_STEPS:
            del ordered[bisect_left(ordered, self.times_s[0])]
        self.times_s.append(step_s)
        insort(ordered, step_s)
        half = len(ordered) // 2
        middle = ordered[half]
        self.median_s = middle if len(ordered) % 2 else (ordered[half - 1] + middle) / 2
