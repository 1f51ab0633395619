"""Does one number of one rank keep rising? Its samples on four scales, looked at now and then.

Every sample, every 8th, 64th and 512th is kept, the last `most` of each, so that a slow rise over a
long run is seen as well as a fast one of the last minutes. A scale rises when the medians of its
first and last eighth differ by more than `rise_ratio`, and when the Theil-Sen slopes of all samples
and of the later half both have a lower 95 % bound above zero. The smaller slope counts.

The Theil-Sen slope is the median of the slopes between all pairs of points. Its bound is Sen's
(1968), one-sided.

Not covered: a number that rises and falls over more steps than a scale keeps rises here.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gonogo.watch.state import replace

SCALES = (1, 8, 64, 512)
MOST_POINTS = 64
"""Points that a slope is taken of: medians of neighbours where there are more samples."""
AGREE = 2
"""Looks running that must find a rise before anything is ended."""
Z_95 = 1.645
Point = tuple[float, float]


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
    slopes: tuple[float, ...] = (0.0,) * len(SCALES)
    """Rise per step on each scale as of its last look; 0 where it does not rise."""
    agreed: tuple[int, ...] = (0,) * len(SCALES)
    """Looks running that found each scale to rise, counted up to `AGREE`."""
    looks: int = 0

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
        return self.scales[0][-1][1] if self.scales[0] else 0.0

    @property
    def risen(self) -> float:
        """How far the latest sample lies above the lowest that is kept (0 before the first)."""
        kept = (value for points in self.scales for _, value in points)
        return self.last - min(kept, default=self.last)

    def with_sample(self, step: int, value: float, look: Look) -> "Series":
        """Return the series with one more sample, looked at where that is due."""
        if self.scales[0] and step <= self.scales[0][-1][0]:
            return self
        number = self.taken + 1 - look.after
        if number <= 0:
            return replace(self, taken=self.taken + 1)
        scales, slopes, agreed = list(self.scales), list(self.slopes), list(self.agreed)
        looks, every = self.looks, max(1, look.least // 8)
        for at, stride in enumerate(SCALES):
            if number % stride:
                break
            scales[at] = points = (*scales[at], (float(step), value))[-look.most :]
            if len(points) >= look.least and number // stride % every == 0:
                looks += 1
                slopes[at] = slope_of(points, look.rise_ratio)
                agreed[at] = min(AGREE, agreed[at] + 1) if slopes[at] else 0
        return replace(
            self,
            taken=self.taken + 1,
            scales=tuple(scales),
            slopes=tuple(slopes),
            agreed=tuple(agreed),
            looks=looks,
        )


def slope_of(samples: Sequence[Point], rise_ratio: float) -> float:
    """Return how fast samples rise per step; 0 when they do not, or no longer do.

    Args:
        samples: at least eight.
        rise_ratio: least rise, as a share of the first samples.
    """
    part, half = len(samples) // 8, len(samples) // 2
    first, last = (
        statistics.median(value for _, value in points)
        for points in (samples[:part], samples[-part:])
    )
    if last - first <= rise_ratio * abs(first):
        return 0.0
    slopes = [slope_above_zero(thinned(run, MOST_POINTS)) for run in (samples, samples[half:])]
    return min(slopes)


def slope_above_zero(points: Sequence[Point]) -> float:
    """Return the slope of points with rising x; 0 where its lower bound is not above zero."""
    count = len(points)
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    spread = Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    place = math.floor((len(slopes) - spread) / 2)
    return statistics.median(slopes) if place >= 0 and slopes[place] > 0.0 else 0.0


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most `most` points: medians of equal runs of neighbours, the latest ones whole."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return points
    first = len(points) % size
    return [
        (statistics.median(x for x, _ in run), statistics.median(y for _, y in run))
        for run in (points[at : at + size] for at in range(first, len(points), size))
    ]
