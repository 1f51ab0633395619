"""What is the mean of numbers whose sum no double may hold? fp64 runs that diverge tell such."""

import math
from collections.abc import Sequence


def mean_of(values: Sequence[float]) -> float:
    """Return the arithmetic mean of finite numbers, exactly rounded where their sum is a double."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)
