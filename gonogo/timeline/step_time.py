"""How long does a step take? Differences of the rank's own monotonic clock between step ends.

Time spent in checkpoint and eval sections is taken out. The first step of a boot (compilation,
first batch) is no sample. Network delay and a wrong wall clock cannot move these numbers.
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
    computed_s: float = 0.0
    """Time since then in which the rank computed, or waited for one that did."""
    computed_times_s: dict[int, float] = field(default_factory=dict)
    """Step → the same, of those of `times_s`, per step: at most what each took."""
    median_s: float | None = None
    last_s: float = 0.0
    """Seconds between the last two step ends that were seen."""
    longest_s: float = 0.0
    """Seconds per step of the longest sample so far."""
    sampled_step: int | None = None
    """The step whose end made the last sample."""
    _ordered: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times_s = deque(self.times_s, maxlen=WINDOW_STEPS)
        self.computed_times_s = dict(sorted(self.computed_times_s.items()))
        self._ordered = sorted(self.times_s)

    def computed_near_s(self, step: int, steps: int) -> float:
        """Return what the longest computed of the last steps that are at most so many away."""
        kept = self.computed_times_s
        if 2 * steps < len(kept):
            return max(kept.get(at, 0.0) for at in range(step - steps, step + steps + 1))
        return max((s for at, s in kept.items() if abs(at - step) <= steps), default=0.0)

    def exclude(self, seconds: float) -> None:
        """Take `seconds` since the last step end out."""
        self.excluded_s += seconds

    def compute(self, seconds: float) -> None:
        """Count `seconds` since the last step end as computed."""
        self.computed_s += seconds

    def end(self, step: int, mono: float) -> None:
        """Take note that `step` ended at `mono` on the rank's clock."""
        if self.last_step is not None and step > self.last_step:
            took_s = mono - self.last_mono - self.excluded_s
            if took_s > 0:
                self.stride = step - self.last_step
                self.last_s = took_s
                self.longest_s = max(self.longest_s, self.last_s / self.stride)
                self._sample(took_s / self.stride)
                self._keep_computed(step, min(self.computed_s, took_s) / self.stride)
                self.sampled_step = step
        self.last_step, self.last_mono, self.excluded_s = step, mono, 0.0
        self.computed_s = 0.0

    def _keep_computed(self, step: int, step_s: float) -> None:
        kept = self.computed_times_s
        if len(kept) == WINDOW_STEPS:
            del kept[next(iter(kept))]
        kept[step] = step_s

    def _sample(self, step_s: float) -> None:
        ordered = self._ordered
        if len(self.times_s) == WINDOW_STEPS:
            del ordered[bisect_left(ordered, self.times_s[0])]
        self.times_s.append(step_s)
        insort(ordered, step_s)
        half = len(ordered) // 2
        middle = ordered[half]
        self.median_s = middle if len(ordered) % 2 else (ordered[half - 1] + middle) / 2
