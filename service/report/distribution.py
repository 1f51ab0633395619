"""How are the times of a phase's steps spread? Quantiles, and a histogram that a long tail cannot
flatten.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gonogo.judge.facts.measure import quantile

BINS = 30
_TAIL = 2.0
"""Steps slower than so many times the 95th percentile are counted beside the histogram."""
_SLOW = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """How many samples lie from `low` to below `high`; the last one takes `high` too."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The spread of some seconds."""

    samples: int
    least: float
    median: float
    p95: float
    p99: float
    most: float
    slow: int
    """How many took more than twice the median."""
    bins: tuple[Bin, ...]
    beyond: int
    """How many lie beyond the last bin."""


def build_distribution(seconds: Iterable[float]) -> Distribution | None:
    """Return the spread of some seconds; None where none is finite."""
    values = sorted(value for value in seconds if math.isfinite(value))
    if not values:
        return None
    median, p95, p99 = (quantile(values, share) for share in (0.5, 0.95, 0.99))
    low, most = values[0], values[-1]
    high = max(value for value in values if value <= max(_TAIL * p95, low))
    bins = _bins(values, low, high)
    return Distribution(
        samples=len(values),
        least=low,
        median=median,
        p95=p95,
        p99=p99,
        most=most,
        slow=sum(value > _SLOW * median for value in values),
        bins=bins,
        beyond=len(values) - sum(row.count for row in bins),
    )


def _bins(values: list[float], low: float, high: float) -> tuple[Bin, ...]:
    if high <= low:
        return (Bin(low=low, high=low, count=sum(value <= low for value in values)),)
    number = min(BINS, max(5, math.isqrt(len(values)) * 2))
    counts = [0] * number
    for value in values:
        if value <= high:
            counts[min(number - 1, int((value - low) / (high - low) * number))] += 1
    width = (high - low) / number
    return tuple(
        Bin(low=low + place * width, high=low + (place + 1) * width, count=count)
        for place, count in enumerate(counts)
    )
