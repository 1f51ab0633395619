"""What is the mean of numbers whose sum no double may hold? fp64 runs that diverge tell such."""

import math
import sys
from collections.abc import Sequence

_DOWN = -64
"""Power of two by which what is too large for a sum is made smaller; more samples there are not."""
_LARGEST = math.ldexp(sys.float_info.max, _DOWN)


def mean_of(values: Sequence[float]) -> float:
    """Return the arithmetic mean of finite numbers, exactly rounded where their sum is a double."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        mean = math.fsum(math.ldexp(value, _DOWN) for value in values) / len(values)
        return math.ldexp(max(-_LARGEST, min(mean, _LARGEST)), -_DOWN)
