"""Numbers of a run over its steps, thinned so that no peak is lost, and how its gate stands.

The gate of a run that continues is shown over its newest lines, and never decides. Pages show the
lowest rank at each refresh. Each of its lines is read once, and what it says is kept in memory.
"""

import math
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from threading import Lock
from typing import Annotated

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from gonogo.contract.criterion import OWN_PREFIX, own_name
from gonogo.contract.decision import CriterionResult
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.order import Order
from gonogo.goodput.account import RankAccount, add_line
from gonogo.judge.facts.metrics import build_measure
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps, read_lines
from service.evidence.files import (
    beat_on,
    load_lines_after,
    load_newest_lines,
    load_ranks,
    load_steps,
)

Point = tuple[int, float]


class SeriesMetric(StrEnum):
    """What can be drawn: fields of the heartbeats."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    LR = "lr"
    TOKS_PER_S = "toks_per_s"
    DT_STEP_S = "dt_step_s"
    DT_FETCH_S = "dt_fetch_s"
    GPU_MEM_ALLOC = "gpu_mem_alloc"
    GPU_MEM_RESERVED = "gpu_mem_reserved"
    HOST_RSS_MB = "host_rss_mb"
    GATE_ENTROPY = "gate_entropy"
    GATE_MAX = "gate_max"
    VAL_LOSS = "val_loss"


OwnMetric = Annotated[str, Field(pattern=f"^{OWN_PREFIX}.", max_length=128)]
"""A number of the program's own: `user/acc`."""

OWN_MSGS = (Msg.PROGRESS, Msg.EVAL, Msg.METRICS)
"""Messages that may hold them, in a field of the name `OWN_FIELD`."""
OWN_FIELD = '"user"'

MSGS = {
    **dict.fromkeys(SeriesMetric, (Msg.PROGRESS,)),
    SeriesMetric.DT_STEP_S: (Msg.STEP_START, Msg.STEP_END),
    SeriesMetric.VAL_LOSS: (Msg.EVAL,),
}
"""Metric → messages that it is made of."""

UNITS = {
    SeriesMetric.TOKS_PER_S: "tokens/s",
    SeriesMetric.DT_STEP_S: "s",
    SeriesMetric.DT_FETCH_S: "s",
    SeriesMetric.GPU_MEM_ALLOC: "MB",
    SeriesMetric.GPU_MEM_RESERVED: "MB",
    SeriesMetric.HOST_RSS_MB: "MB",
}


class RankSeries(BaseModel):
    """One rank's points."""

    rank: int
    points: list[Point]
    """(step, value), ascending by step."""
    samples: int
    """How many finite values there were before downsampling."""
    non_finite: list[int]
    """Steps whose value was NaN or infinite (the first 100)."""


class SeriesView(BaseModel):
    """One metric of a run."""

    run: str
    metric: SeriesMetric | OwnMetric
    unit: str | None
    series: list[RankSeries]


def load_series(
    session: Session, run: str, metric: SeriesMetric | str, points: int, rank: int | None = None
) -> SeriesView:
    """Return one metric of a run, at most about `points` points a rank."""
    ranks = load_ranks(session, run) if rank is None else [rank]
    values = {one: _load_values(session, run, one, metric) for one in ranks}
    return SeriesView(
        run=run,
        metric=metric,
        unit=UNITS.get(metric) if isinstance(metric, SeriesMetric) else None,
        series=[_rank_series(one, by_step, points) for one, by_step in values.items() if by_step],
    )


def _load_values(
    session: Session, run: str, rank: int, metric: SeriesMetric | str
) -> dict[int, float]:
    if not isinstance(metric, SeriesMetric):
        steps = load_steps(session, run, rank, OWN_MSGS, having=OWN_FIELD)
        return steps.own(own_name(metric) or "")
    steps = load_steps(session, run, rank, MSGS[metric])
    if metric is SeriesMetric.DT_STEP_S:
        return steps.mean_step_times()
    return steps.evals if metric is SeriesMetric.VAL_LOSS else steps.samples(metric.value)


def _rank_series(rank: int, by_step: dict[int, float], points: int) -> RankSeries:
    finite = [(step, value) for step, value in sorted(by_step.items()) if math.isfinite(value)]
    strange = [step for step, value in sorted(by_step.items()) if not math.isfinite(value)]
    return RankSeries(
        rank=rank,
        points=downsample(finite, points),
        samples=len(finite),
        non_finite=strange[:100],
    )


def downsample(points: list[Point], limit: int) -> list[Point]:
    """Return at most `limit` of the points (at least two): lowest and highest of each bucket."""
    limit = max(2, limit)
    if len(points) <= limit:
        return points
    buckets = limit // 2
    kept: list[Point] = []
    for bucket in range(buckets):
        start = bucket * len(points) // buckets
        end = (bucket + 1) * len(points) // buckets
        part, value = points[start:end], itemgetter(1)
        kept += sorted({min(part, key=value), max(part, key=value)})
    return kept


LINES = 4_000


def load_gate_now(session: Session, run: str, order: Order) -> list[CriterionResult]:
    """Return what each criterion of an order's gate sees so far; nothing before the first step."""
    rules = build_rules(order)
    ranks: dict[int, RankSteps] = {}
    if not order.gate:
        return []
    for rank in load_ranks(session, run):
        newest = islice(load_newest_lines(session, run, rank), LINES // order.world_size)
        ranks[rank] = read_lines(rank, list(newest)[::-1]).steps
    last = min((steps.last_step for steps in ranks.values()), default=0)
    if len(ranks) < order.world_size or last < rules.first_step:
        return []
    ended = (steps.steps.steps_of(Msg.STEP_END) for steps in ranks.values())
    first = max(rules.first_step, *(next((step for step, _ in rows), last) for rows in ended))
    seen = rules.model_copy(update={"first_step": min(first, last), "steps": last})  # that all have
    return [
        evaluate(criterion, build_measure(criterion, ranks, seen), order.world_size)
        for criterion in order.gate
    ]


STRETCHES = 200
_MOST_NAMES = 100
_RUNS = 256
_Low = tuple[float, int]


@dataclass(slots=True)
class Curve:
    """A curve that grows: the extremes of each stretch of steps."""

    width: int = 1
    stretches: dict[int, tuple[_Low, _Low]] = field(default_factory=dict)
    """Number of the stretch → its lowest and its highest value."""
    non_finite: int | None = None

    def add(self, step: int, value: float) -> None:
        """Take a value."""
        if not math.isfinite(value):
            self.non_finite = min(step, step if self.non_finite is None else self.non_finite)
            return
        self._merge(step // self.width, (value, step), (value, step))
        if len(self.stretches) > STRETCHES:
            before, self.stretches = self.stretches, {}
            self.width *= 2
            for number, (low, high) in before.items():
                self._merge(number // 2, low, high)

    def _merge(self, number: int, low: _Low, high: _Low) -> None:
        known = self.stretches.get(number, (low, high))
        self.stretches[number] = min(known[0], low), max(known[1], high)

    @property
    def points(self) -> list[tuple[float, float]]:
        """Steps and values in the order of the steps."""
        ends = {end for both in self.stretches.values() for end in both}
        return sorted((float(step), value) for value, step in ends)


@dataclass(slots=True)
class _Known:
    """What was read of a rank."""

    bytes: int = 0
    account: RankAccount = field(default_factory=RankAccount)
    curves: dict[str, Curve] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def take(self, beat: Heartbeat) -> None:
        add_line(self.account, beat)
        drawn: dict[str, float | None] = {
            f"{OWN_PREFIX}{name}": value for name, value in (beat.user or {}).items()
        }
        if beat.msg == Msg.PROGRESS:
            drawn |= {"loss": beat.loss, "tokens/s": beat.toks_per_s}
        elif beat.msg == Msg.EVAL:
            drawn |= {"validation loss": beat.val_loss}
        for name, value in drawn.items():
            if value is not None and (name in self.curves or len(self.curves) < _MOST_NAMES):
                self.curves.setdefault(name, Curve()).add(beat.step, value)


_known: OrderedDict[tuple[str, int], _Known] = OrderedDict()
"""By run and rank. Runs have unique ids, so that one table serves every database."""
_lock = Lock()


def load_account(session: Session, run: str) -> RankAccount | None:
    """Return the account of a run's lowest rank until now; None: no rank has reported anything."""
    known = _follow(session, run)
    if known is None:
        return None
    with known.lock:
        return known.account.model_copy(deep=True)


def load_curves(session: Session, run: str) -> dict[str, Curve]:
    """Return the curves of a run's lowest rank by name: loss, tokens/s, its own metrics."""
    known = _follow(session, run)
    if known is None:
        return {}
    with known.lock:
        return deepcopy(known.curves)


def _follow(session: Session, run: str) -> _Known | None:
    """Read the lines that are new."""
    rank = next(iter(load_ranks(session, run)), None)
    if rank is None:
        return None
    with _lock:
        known = _known.setdefault((run, rank), _Known())
        _known.move_to_end((run, rank))
        if len(_known) > _RUNS:
            _known.popitem(last=False)
    with known.lock:
        for text, end in load_lines_after(session, run, rank, known.bytes):
            known.bytes, beat = end, beat_on(text, rank)
            if beat is not None:
                known.take(beat)
    return known
