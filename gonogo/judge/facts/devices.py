"""Lay the device samples of the ticks over the steps: how busy and how full was each device?

A step's utilisation is the mean of its rank's samples that were taken during the step, its memory
the highest of them. A step without a sample takes the latest one before its end, unless that is
older than `STALE_S`. Samples and steps are placed by the monotonic clock of their host. The watcher
stamps samples of another host when it receives them; there `own_mono` counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gonogo.contract.canonical import mean_of
from gonogo.contract.criterion import Metric
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.detectors.hardware import DeviceRow

STALE_S = 15.0
"""A sample says nothing about a step that ended so long after it."""

Sample = DeviceSample | DeviceRow
Windows = Mapping[int, Mapping[int, tuple[float, float]]]
"""Rank → step → when it began and ended, in seconds of the rank's monotonic clock."""
ByStep = dict[int, dict[int, float]]
"""Rank → step → value."""


def lay_over(
    ranks: Mapping[int, RankSteps], samples: Iterable[Sample], order: Order | None = None
) -> None:
    """Set `told_by_devices` of each rank, for the metrics of devices.

    Args:
        ranks: rank → its steps.
        samples: device samples of the run.
        order: says which ranks are on other hosts than the watcher, which is on node 0.
    """
    rows = list(samples)
    if not rows:
        return
    elsewhere = () if order is None else {rank for rank in ranks if order.node_of(rank) > 0}
    windows = {rank: steps.steps.windows() for rank, steps in ranks.items()}
    util = by_step(rows, windows, elsewhere, lambda row: row.util, mean_of)
    memory = by_step(rows, windows, elsewhere, lambda row: row.mem_used_mb, max)
    ratio = ratio_by_step(util)
    for rank, steps in ranks.items():
        steps.told_by_devices = {
            Metric.GPU_UTIL.value: util[rank],
            Metric.GPU_UTIL_RATIO.value: ratio,
            Metric.GPU_MEM_RESERVED_MB.value: memory[rank],
        }


def ratio_by_step(util: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Return `gpu_util_ratio`: step → lowest to highest utilisation over the ranks.

    A step that any rank lacks has none, nor has a step in which every device was idle.
    """
    shared = set.intersection(*map(set, util.values())) if util else set()
    steps = {step: [row[step] for row in util.values()] for step in sorted(shared)}
    return {step: min(row) / max(row) for step, row in steps.items() if max(row) > 0}


def by_step(
    samples: Iterable[Sample],
    windows: Windows,
    elsewhere: Collection[int],
    reading: Callable[[Sample], float | None],
    of_step: Callable[[Sequence[float]], float],
) -> ByStep:
    """Return rank → step → what `of_step` makes of its readings.

    Args:
        samples: in any order; what is repeated counts once.
        windows: when each rank's steps began and ended.
        elsewhere: ranks on other hosts than the watcher.
        reading: returns what a sample says; None is left out.
        of_step: returns one value for the readings of a step.
    """
    series: dict[int, set[tuple[float, str, float]]] = {rank: set() for rank in windows}
    for sample in samples:
        clock = sample.own_mono if sample.rank in elsewhere else sample.mono
        value = reading(sample)
        if sample.rank in series and clock is not None and value is not None:
            series[sample.rank].add((clock, sample.uuid, value))
    found: ByStep = {}
    for rank, steps in windows.items():
        ordered = sorted(series[rank])
        clocks, values = [row[0] for row in ordered], [row[2] for row in ordered]
        readings = {step: _within(clocks, values, *span) for step, span in steps.items()}
        found[rank] = {step: of_step(row) for step, row in readings.items() if row}
    return found


def _within(
    clocks: Sequence[float], values: Sequence[float], start: float, end: float
) -> Sequence[float]:
    """Return the readings in a step, or the latest before its end, or none."""
    first, after = bisect_left(clocks, start), bisect_right(clocks, end)
    if first < after:
        return values[first:after]
    if after == 0 or end - clocks[after - 1] > STALE_S:
        return ()
    return values[after - 1 : after]
