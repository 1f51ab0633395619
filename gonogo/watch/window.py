"""The last values of one number of a run, and which of them were spikes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gonogo.watch.state import replace

SIGMA_OF_MAD = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The last values of one number."""

    values: tuple[float, ...] = ()
    """Oldest first."""
    spikes: tuple[bool, ...] = ()
    """Whether each of the very last values was a spike."""

    def after(self, value: float, *, size: int, spike: bool, spike_of: int) -> "Window":
        """Return the window with one more value.

        Args:
            value: the newest value.
            size: how many values are kept.
            spike: whether the newest value is a spike.
            spike_of: among how many values spikes are counted.
        """
        return replace(
            self,
            values=(*self.values, value)[-size:],
            spikes=(*self.spikes, spike)[-spike_of:],
        )

    def tail(self, count: int) -> tuple[float, ...]:
        """Return the last `count` values."""
        return self.values[-count:]


def sigma_of(values: Sequence[float]) -> float:
    """Return the standard deviation, estimated by the median absolute deviation."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    return SIGMA_OF_MAD * statistics.median(abs(value - middle) for value in values)


def jitter_of(values: Sequence[float]) -> float:
    """Return the standard deviation of values around their trend.

    Differences of neighbours contain no trend, and twice the variance.
    """
    return sigma_of([after - before for before, after in pairwise(values)]) / math.sqrt(2.0)
