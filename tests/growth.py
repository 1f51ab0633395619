"""Does work grow with the square of what it is given? A ratio: a stopwatch knows one machine."""

from __future__ import annotations

import time
from collections.abc import Callable

MORE = 8


def grows_with_size(work: Callable[[int], object], size: int) -> bool:
    """Return whether `MORE` times as much takes about so many times the CPU time.

    What grows with the square takes `MORE` times that; the limit is half-way (geometrically more
    than half), by the quickest of three tries each.

    Args:
        work: is given the size.
        size: large enough that one go takes a millisecond.
    """
    return _took_s(work, size * MORE) < _took_s(work, size) * MORE * MORE / 2


def _took_s(work: Callable[[int], object], size: int) -> float:
    goes = []
    for _ in range(3):
        began = time.process_time()
        work(size)
        goes.append(time.process_time() - began)
    return min(goes)
