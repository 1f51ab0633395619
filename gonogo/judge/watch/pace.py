"""How long does a step take? Differences of the rank's own monotonic clock between step ends.

Time spent in checkpoint and eval sections is taken out. The first step of a boot (compilation,
first batch) is no sample. Network delay and a wrong wall clock cannot move these numbers.
"""

import statistics
from dataclasses import dataclass, replace

WINDOW_STEPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Step times of one boot of one rank."""

    times_s: tuple[float, ...] = ()
    """Seconds per step of the last `WINDOW_STEPS` samples."""
    last_step: int | None = None
    last_mono: float = 0.0
    stride: int = 1
    """Steps between the last two step ends that were seen."""
    excluded_s: float = 0.0
    """Checkpoint and eval time since the last step end."""
    median_s: float | None = None

    @property
    def last_s(self) -> float:
        """Seconds between the last two step ends that were seen."""
        return self.times_s[-1] * self.stride if self.times_s else 0.0

    def without(self, seconds: float) -> "Pace":
        """Return the pace with `seconds` since the last step end taken out."""
        return replace(self, excluded_s=self.excluded_s + seconds)

    def ended(self, step: int, mono: float) -> "Pace":
        """Return the pace after `step` ended at `mono` on the rank's clock."""
        times, stride, median = self.times_s, self.stride, self.median_s
        if self.last_step is not None and step > self.last_step:
            took_s = mono - self.last_mono - self.excluded_s
            if took_s > 0:
                stride = step - self.last_step
                times = (*times[1 - WINDOW_STEPS :], took_s / stride)
                median = statistics.median(times)
        return Pace(times_s=times, last_step=step, last_mono=mono, stride=stride, median_s=median)
