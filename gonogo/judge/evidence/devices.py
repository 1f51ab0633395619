"""How busy were the devices in each step? The ticks' samples laid over the ranks' steps.

Pure. A step's utilisation is the mean of the samples of its rank that were taken while it ran; a
step without one (they are shorter than the time between samples) takes the latest sample before its
end that is not older than `STALE_S`; else it has none, and whoever asked for it gets nothing. The
clock of samples and steps is the host's monotonic clock.

`lay_over` gives the ranks what `gpu_util` and `gpu_util_ratio` are measured on: of every step one
value, or none.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gonogo.contract.criterion import Metric
from gonogo.judge.evidence.steps import RankSteps

STALE_S = 15.0
"""A sample says nothing about a step that ended so long after it."""

Windows = Mapping[int, Mapping[int, tuple[float, float]]]
"""Rank → step → when it began and ended, in seconds of the rank's monotonic clock."""

ByStep = dict[int, dict[int, float]]
"""Rank → step → value."""


class Sample(Protocol):
    """What is used of a device sample."""

    @property
    def rank(self) -> int | None:
        """Rank that the device belongs to."""

    @property
    def mono(self) -> float:
        """When, in seconds of the host's monotonic clock."""

    @property
    def uuid(self) -> str:
        """The device."""

    @property
    def util(self) -> float | None:
        """Percent."""


def lay_over(ranks: Mapping[int, RankSteps], samples: Iterable[Sample]) -> None:
    """Tell each rank how busy its device was in each of its steps.

    Args:
        ranks: rank → its steps; `told_by_devices` is set.
        samples: device samples of the run.
    """
    windows = {rank: steps.steps.windows() for rank, steps in ranks.items()}
    util = utilisation_by_step(samples, windows)
    ratio = ratio_by_step(util)
    for rank, steps in ranks.items():
        steps.told_by_devices = {
            Metric.GPU_UTIL.value: util[rank],
            Metric.GPU_UTIL_RATIO.value: ratio[rank],
        }


def utilisation_by_step(samples: Iterable[Sample], windows: Windows) -> ByStep:
    """Return `gpu_util`: rank → step → percent, for the steps that have a sample.

    The order of the samples and their repetition change nothing.

    Args:
        samples: device samples of the run; those without a rank or a utilisation are left out.
        windows: when each rank's steps began and ended.
    """
    series = {rank: _Series(rows) for rank, rows in _by_rank(samples).items()}
    return {
        rank: {
            step: value
            for step, (start, end) in steps.items()
            if rank in series and (value := series[rank].within(start, end)) is not None
        }
        for rank, steps in windows.items()
    }


def ratio_by_step(util: Mapping[int, Mapping[int, float]]) -> ByStep:
    """Return `gpu_util_ratio`: lowest to highest utilisation of a step, the same on every rank.

    A step that any rank lacks has none; nor has one in which every device was idle.

    Args:
        util: what `utilisation_by_step` returned.
    """
    if not util:
        return {}
    shared = set.intersection(*(set(steps) for steps in util.values()))
    found: dict[int, float] = {}
    for step in sorted(shared):
        values = [steps[step] for steps in util.values()]
        if max(values) > 0:
            found[step] = min(values) / max(values)
    return {rank: dict(found) for rank in util}


class _Series:
    """One rank's samples by their clock."""

    def __init__(self, rows: Sequence[tuple[float, str, float]]) -> None:
        self._clocks: list[float] = []
        self._values: list[float] = []
        last = None
        for mono, uuid, util in sorted(rows):
            if (mono, uuid) != last:  # said twice: the lower one comes first
                self._clocks.append(mono)
                self._values.append(util)
            last = mono, uuid

    def within(self, start: float, end: float) -> float | None:
        """Return the mean of the samples in a step, else the latest before its end, or None."""
        first, after = bisect_left(self._clocks, start), bisect_right(self._clocks, end)
        if first < after:
            return math.fsum(self._values[first:after]) / (after - first)
        if after == 0 or end - self._clocks[after - 1] > STALE_S:
            return None
        return self._values[after - 1]


def _by_rank(samples: Iterable[Sample]) -> dict[int, list[tuple[float, str, float]]]:
    """Return rank → (clock, UUID, utilisation)."""
    found: dict[int, list[tuple[float, str, float]]] = {}
    for sample in samples:
        if sample.rank is not None and sample.util is not None:
            found.setdefault(sample.rank, []).append((sample.mono, sample.uuid, sample.util))
    return found
