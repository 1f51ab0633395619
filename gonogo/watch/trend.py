"""Does a series of numbers rise? Its Theil-Sen slope, with a lower bound on it.

The slope is the median of the slopes between all pairs of points: a third of the points may lie
anywhere. The bound is Sen's (1968), one-sided at 95 %: above zero, the rise is no accident of
noise. Pure arithmetic, so that every machine comes to the same digits.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Z_95 = 1.645
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeBound:
    """Slope of a series, in units of y per unit of x."""

    slope: float
    lower: float
    """One-sided lower 95 % bound; minus infinity when there are too few points for one."""


def trend_of(points: Sequence[Point]) -> SlopeBound:
    """Return the trend of points with rising x; at least two.

    Raises:
        ValueError: fewer than two points.
    """
    count = len(points)
    if count < 2:
        raise ValueError("a trend takes two points")
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    spread = Z_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    place = math.floor((len(slopes) - spread) / 2)
    lower = slopes[place] if place >= 0 else -math.inf
    return SlopeBound(slope=statistics.median(slopes), lower=lower)


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
