"""How busy and how full were the devices in each step? The ticks' samples laid over the steps.

Pure. A step's utilisation is the mean of the samples of its rank that were taken while it ran, its
memory the most of them; a step without one (they are shorter than the time between samples) takes
the latest sample before its end that is not older than `STALE_S`; else it has none, and whoever
asked for it gets nothing. The clock of samples and steps is the host's monotonic clock. Of another
host than the watcher's the samples' `mono` is when they were received there: they are placed by
`own_mono`, which no step of a wall clock moves. Samples of earlier releases lack it, and go by
`ts`, the wall clock of their own host, which its ranks' lines have, too.

`lay_over` gives the ranks what `gpu_util` and `gpu_util_ratio` are measured on, and `gpu_mem_*`
where the trainer itself does not say: of every step one value, or none.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gonogo.contract.criterion import Metric
from gonogo.contract.order import Order
from gonogo.judge.facts.steps import RankSteps
from gonogo.watch.mean import mean_of

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
    def ts(self) -> float:
        """When, in Unix seconds of the device's own host."""

    @property
    def uuid(self) -> str:
        """The device."""

    @property
    def own_mono(self) -> float | None:
        """When, in seconds of its own host's monotonic clock, where `mono` is another's."""

    @property
    def util(self) -> float | None:
        """Percent."""

    @property
    def mem_used_mb(self) -> float | None:
        """MB."""


class _Placed(NamedTuple):
    """A sample on the monotonic clock of its rank's host."""

    rank: int | None
    mono: float
    ts: float
    uuid: str
    util: float | None
    mem_used_mb: float | None
    own_mono: float | None


def lay_over(
    ranks: Mapping[int, RankSteps], samples: Iterable[Sample], order: Order | None = None
) -> None:
    """Tell each rank how busy its device was in each of its steps, and how full.

    Args:
        ranks: rank → its steps; `told_by_devices` is set.
        samples: device samples of the run.
        order: says which ranks are on other hosts than the watcher, which is on node 0.
    """
    elsewhere = () if order is None else [rank for rank in ranks if order.node_of(rank) > 0]
    ahead_s = {rank: ranks[rank].wall_ahead_s for rank in elsewhere}
    rows = [_on_own_clock(row, ahead_s) if row.rank in ahead_s else row for row in samples]
    windows = {rank: steps.steps.windows() for rank, steps in ranks.items()}
    util = utilisation_by_step(rows, windows)
    ratio = ratio_by_step(util)
    memory = memory_by_step(rows, windows)
    for rank, steps in ranks.items():
        steps.told_by_devices = {
            Metric.GPU_UTIL.value: util[rank],
            Metric.GPU_UTIL_RATIO.value: ratio[rank],
            Metric.GPU_MEM_RESERVED_MB.value: memory[rank],
        }


def _on_own_clock(row: Sample, ahead_s: Mapping[int, float | None]) -> Sample:
    """Return a sample of another host on the clock of its rank; without one it is nobody's."""
    rank, mono = row.rank, row.own_mono
    if mono is None:
        ahead = None if rank is None else ahead_s[rank]
        rank, mono = (None, row.mono) if ahead is None else (rank, row.ts - ahead)
    return _Placed(rank, mono, row.ts, row.uuid, row.util, row.mem_used_mb, row.own_mono)


def utilisation_by_step(samples: Iterable[Sample], windows: Windows) -> ByStep:
    """Return `gpu_util`: rank → step → percent, for the steps that have a sample.

    The order of the samples and their repetition change nothing.

    Args:
        samples: device samples of the run; those without a rank or a utilisation are left out.
        windows: when each rank's steps began and ended.
    """
    return _by_step(samples, windows, lambda row: row.util, min, mean_of)


def memory_by_step(samples: Iterable[Sample], windows: Windows) -> ByStep:
    """Return the memory in use: rank → step → MB, the most of each step that has a sample.

    Args:
        samples: device samples of the run; those without a rank or a figure are left out.
        windows: when each rank's steps began and ended.
    """
    return _by_step(samples, windows, lambda row: row.mem_used_mb, max, max)


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


def _by_step(
    samples: Iterable[Sample],
    windows: Windows,
    reading: Callable[[Sample], float | None],
    worse: Callable[[float, float], float],
    of_step: Callable[[Sequence[float]], float],
) -> ByStep:
    """Return rank → step → what `of_step` makes of its readings.

    Args:
        samples: device samples of the run.
        windows: when each rank's steps began and ended.
        reading: returns what a sample says; None is left out.
        worse: returns the worse of two readings of one device at one moment.
        of_step: returns one value for the readings of a step.
    """
    series: dict[int, _Series] = {}
    for sample in samples:
        value = reading(sample)
        if sample.rank is not None and value is not None:
            series.setdefault(sample.rank, _Series()).take(sample, value, worse)
    return {
        rank: {
            step: of_step(values)
            for step, (start, end) in steps.items()
            if rank in series and (values := series[rank].within(start, end))
        }
        for rank, steps in windows.items()
    }


class _Series:
    """One rank's readings by their clock."""

    def __init__(self) -> None:
        self._said: dict[tuple[float, str], float] = {}
        self._clocks: list[float] = []
        self._values: list[float] = []

    def take(self, sample: Sample, value: float, worse: Callable[[float, float], float]) -> None:
        """Take a reading; of one that is said twice the worse counts."""
        place = sample.mono, sample.uuid
        self._said[place] = worse(value, self._said.get(place, value))

    def within(self, start: float, end: float) -> Sequence[float]:
        """Return the readings in a step, else the latest before its end, else none."""
        if self._said:
            ordered = sorted(self._said.items())
            self._clocks = [mono for (mono, _), _ in ordered]
            self._values = [value for _, value in ordered]
            self._said = {}
        first, after = bisect_left(self._clocks, start), bisect_right(self._clocks, end)
        if first < after:
            return self._values[first:after]
        if after == 0 or end - self._clocks[after - 1] > STALE_S:
            return ()
        return self._values[after - 1 : after]
