"""Does one number of one rank keep rising? Its samples on four scales, looked at now and then.

Every sample, every 8th, 64th and 512th is kept, the last `most` of each, so that a slow rise over a
long run is seen as well as a fast one of the last minutes. A scale rises when the medians of its
first and last eighth differ by more than `rise_ratio`, when the later half has its share of that
(a cache that filled up rose, and does not go on), and when the Theil-Sen slopes of all samples and
of the later half both have a lower 95 % bound above zero. The smaller of the two slopes counts.
"""

import math
import statistics
from dataclasses import dataclass

from gonogo.watch.state import replace
from gonogo.watch.trend import Point, thinned, trend_of

SCALES = (1, 8, 64, 512)
_WIDER = tuple(enumerate(SCALES))[1:]
MOST_POINTS = 64
"""Points that a slope is taken of: medians of neighbours where there are more samples."""
GOES_ON_SHARE = 0.25
"""Least share of the rise that the later half must have; of a straight line it has a half."""
BREATHES_X = 1.5
"""A rise counts when it is so many times the deepest fall seen before."""
AGREE = 2
"""Looks running that must find a rise before anything is ended."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How samples are looked at."""

    after: int
    """Samples that are left out at the start."""
    least: int
    """Samples of a scale that a look takes, at least 8."""
    most: int
    """Samples of a scale that are kept."""
    rise_ratio: float


@dataclass(frozen=True, kw_only=True)
class Series:
    """One number of one boot of one rank."""

    boot: str
    taken: int = 0
    scales: tuple[tuple[Point, ...], ...] = ((),) * len(SCALES)
    """(step, value), oldest first."""
    newest: tuple[Point, ...] = ()
    """Samples that the first scale is yet to take: it does so before it is looked at."""
    slopes: tuple[float, ...] = (0.0,) * len(SCALES)
    """Rise per step on each scale as of its last look; 0 where it does not rise."""
    agreed: tuple[int, ...] = (0,) * len(SCALES)
    """Looks running that found each scale to rise, counted up to `AGREE`."""
    looks: int = 0
    high: float = 0.0
    """Highest sample since the last fall began."""
    fell: float = 0.0
    """The most that samples have fallen from a high: memory that breathes so is no leak."""

    @property
    def slope(self) -> float:
        """Rise per step of the scale that rises fastest."""
        return max(self.slopes)

    @property
    def steady(self) -> bool:
        """Whether enough looks running agree that a scale rises."""
        return AGREE in self.agreed

    @property
    def last(self) -> float:
        """The latest sample (0 before the first)."""
        latest = self.newest or self.scales[0]
        return latest[-1][1] if latest else 0.0

    @property
    def risen(self) -> float:
        """How far the latest sample lies above the lowest that is kept (0 before the first)."""
        kept = (value for points in (*self.scales, self.newest) for _, value in points)
        return self.last - min(kept, default=self.last)

    def with_sample(self, step: int, value: float, look: Look) -> "Series":
        """Return the series with one more sample, looked at where that is due."""
        latest = self.newest or self.scales[0]
        if latest and step <= latest[-1][0]:
            return self
        taken = self.taken + 1
        number = taken - look.after
        if number <= 0:
            return replace(self, taken=taken)
        high, fell = self.high, self.fell
        if value > high:
            high = value
        elif high - value > fell:
            fell = high - value
        newest = (*self.newest, (float(step), value))
        due = number % max(1, look.least // 8) == 0
        kept = () if due else newest
        own = replace(self, taken=taken, high=high, fell=fell, newest=kept)
        if due:
            own = own._with_points(0, newest, number, look)
        for at, stride in _WIDER:  # each a multiple of the one before
            if number % stride:
                break
            own = own._with_points(at, newest[-1:], number // stride, look)
        return own

    def _with_points(self, at: int, more: tuple[Point, ...], number: int, look: Look) -> "Series":
        """Return the series with the next points of one scale, the last of them its `number`-th."""
        points = (self.scales[at] + more)[-look.most :]
        scales = (*self.scales[:at], points, *self.scales[at + 1 :])
        if len(points) < look.least or number % max(1, look.least // 8):
            return replace(self, scales=scales)
        slopes, agreed = list(self.slopes), list(self.agreed)
        slopes[at] = slope_of(points, look.rise_ratio, self.fell)
        agreed[at] = min(AGREE, agreed[at] + 1) if slopes[at] else 0
        return replace(
            self,
            scales=scales,
            slopes=tuple(slopes),
            agreed=tuple(agreed),
            looks=self.looks + 1,
        )


def slope_of(samples: tuple[Point, ...], rise_ratio: float, fell: float = 0.0) -> float:
    """Return how fast samples rise per step; 0 when they do not, or no longer do.

    Args:
        samples: at least eight.
        rise_ratio: least rise, as a share of the first samples.
        fell: the most that samples have fallen before; a smaller rise than 1.5 times that is none.
    """
    part, half = len(samples) // 8, len(samples) // 2
    first, last = _middle(samples[:part]), _middle(samples[-part:])
    rise = last - first
    if rise <= max(rise_ratio * abs(first), BREATHES_X * fell):
        return 0.0
    if last - _middle(samples[half - part // 2 :][:part]) < GOES_ON_SHARE * rise:
        return 0.0
    slope = math.inf
    for run in (samples, samples[half:]):
        trend = trend_of(thinned(run, MOST_POINTS))
        if trend.lower <= 0:
            return 0.0
        slope = min(slope, trend.slope)
    return slope


def _middle(points: tuple[Point, ...]) -> float:
    return statistics.median([value for _, value in points])
