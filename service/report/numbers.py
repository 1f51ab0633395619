"""What each rank did, from its heartbeats, by the functions that facts are made with."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.device import DeviceSample
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order
from gonogo.contract.rules import Rules
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.measure import quantile
from gonogo.judge.facts.metrics import METRICS
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from service.evidence.series import Point, downsample

POINTS = 400
"""Points of a curve, at most."""
SECTIONS = ("data", "forward", "backward", "optimizer", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number of a rank over the steps; the statistics are of all its finite values."""

    points: tuple[Point, ...]
    """Finite values, thinned; every peak is kept."""
    count: int
    first: float
    """The first value, finite or not."""
    last: float
    median: float | None = None
    p95: float | None = None
    highest: float | None = None
    non_finite: int | None = None
    """The first step whose value is NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """What one rank did."""

    rank: int
    last_step: int
    loader_ready_s: float | None = None
    series: Mapping[str, Series] = field(default_factory=dict)
    """By name: loss, val_loss, tok_s, step_s, …; what was not reported is missing."""

    def points(self, name: str) -> tuple[Point, ...]:
        """Return the points of a series; none where it is missing."""
        return self.series[name].points if name in self.series else ()

    def median(self, name: str) -> float:
        """Return the median of a series; 0 where it is missing."""
        return (self.series[name].median or 0.0) if name in self.series else 0.0

    @property
    def section_s(self) -> dict[str, float]:
        """Section → its median seconds in a step."""
        return {name: self.median(name) for name in SECTIONS if name in self.series}

    @property
    def whole_step_s(self) -> float:
        """The median step with its sections; data may be fetched between two steps."""
        return max(self.median("step_s"), sum(self.section_s.values()))


def build_numbers(
    order: Order | None, ranks: Mapping[int, RankSteps], samples: Sequence[DeviceSample] = ()
) -> tuple[RankNumbers, ...]:
    """Return the numbers of every rank of a run, by rank.

    Args:
        order: what was ordered; None leaves out what depends on it.
        ranks: rank → its steps.
        samples: of the devices.
    """
    rules = build_rules(order)
    lay_over(ranks, samples, order)
    return tuple(_numbers(rank, ranks[rank], rules) for rank in sorted(ranks))


def _numbers(rank: int, steps: RankSteps, rules: Rules) -> RankNumbers:
    loader_s = (boot.loader_s for boot in steps.boots if boot.loader_s is not None)
    return RankNumbers(
        rank=rank,
        last_step=steps.last_step,
        loader_ready_s=next(loader_s, None),
        series={name: build_series(rows) for name, rows in _samples(steps, rules) if rows},
    )


def _samples(steps: RankSteps, rules: Rules) -> Iterator[tuple[str, Mapping[int, float]]]:
    for name, told in (
        ("loss", "loss"),
        ("fetch_s", "dt_fetch_s"),
        ("alloc_mb", "gpu_mem_alloc"),
        ("host_mb", "host_rss_mb"),
        ("gate_entropy", "gate_entropy"),
        ("gate_max", "gate_max"),
    ):
        yield name, steps.samples(told)
    yield "val_loss", steps.evals
    yield "step_s", steps.steps.step_times()
    if rules.known:
        yield "tok_s", METRICS[Metric.TOKS_PER_S].samples(steps, rules)
    yield "device_mb", METRICS[Metric.GPU_MEM_RESERVED_MB].samples(steps, rules)
    yield "util", METRICS[Metric.GPU_UTIL].samples(steps, rules)
    columns = steps.steps.sections()
    ended = [
        row for row in steps.steps.steps_of(Msg.STEP_END) if not math.isnan(columns[0][row[1]])
    ]
    for name, column in zip(SECTIONS, columns, strict=True):
        yield name, {step: column[row] for step, row in ended}


def build_series(by_step: Mapping[int, float]) -> Series:
    """Return the statistics and the points of step → value; at least one value is needed."""
    rows = sorted(by_step.items())
    finite = [row for row in rows if math.isfinite(row[1])]
    values = sorted(_values(finite))
    strange = (step for step, value in rows if not math.isfinite(value))
    return Series(
        points=tuple(downsample(finite, POINTS)),
        count=len(rows),
        first=rows[0][1],
        last=rows[-1][1],
        median=rounded(statistics.median(values)) if values else None,
        p95=rounded(quantile(values, 0.95)) if values else None,
        highest=values[-1] if values else None,
        non_finite=next(strange, None),
    )


def _values(rows: Iterable[Point]) -> Iterator[float]:
    return (value for _, value in rows)
