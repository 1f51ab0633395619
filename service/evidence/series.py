"""Numbers of a run over its steps, downsampled so that no peak is lost, and how its gate stands.

Each bucket of neighbouring steps gives its lowest and its highest value at their own steps. The
gate of a run that continues is shown over its newest lines, and never decides.
"""

import math
from collections import OrderedDict
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Annotated

from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.criterion import OWN_PREFIX, own_name
from gonogo.contract.decision import CriterionResult
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order, Rules
from gonogo.judge.facts.measure import build_measure
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps, read_lines
from service.db.schema import ProgressRow
from service.evidence.files import load_newest_lines, load_ranks, load_steps

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
_MOST = 1_000
_seen: OrderedDict[str, tuple[int | None, list[CriterionResult]]] = OrderedDict()
"""Run → number of its lines, and what was seen in them. Runs have unique ids in every database."""


def load_gate_now(session: Session, run: str, order: Order) -> list[CriterionResult]:
    """Return what each criterion of an order's gate sees so far; nothing before the first step."""
    lines = session.scalars(select(ProgressRow.lines).where(ProgressRow.run == run)).first()
    known = _seen.get(run)
    if known is not None and known[0] == lines:
        return known[1]
    _seen[run] = lines, _observe(session, run, order)
    if len(_seen) > _MOST:
        _seen.popitem(last=False)
    return _seen[run][1]


def _observe(session: Session, run: str, order: Order) -> list[CriterionResult]:
    rules = build_rules(order)
    if not order.gate:
        return []
    ranks = _load_steps(session, run)
    last = min((steps.last_step for steps in ranks.values()), default=0)
    if len(ranks) < order.world_size or last < rules.first_step:
        return []
    seen = _as_if_it_ended(rules, ranks, last)
    return [
        evaluate(criterion, build_measure(criterion, ranks, seen), order.world_size)
        for criterion in order.gate
    ]


def _as_if_it_ended(rules: Rules, ranks: dict[int, RankSteps], last: int) -> Rules:
    """Return the rules of a run of the steps that every rank has whole."""
    ended = (steps.steps.steps_of(Msg.STEP_END) for steps in ranks.values())
    firsts = [next((step for step, _ in rows), last) for rows in ended]
    first = max(rules.first_step, *firsts)
    return rules.model_copy(update={"first_step": min(first, last), "steps": last})


def _load_steps(session: Session, run: str) -> dict[int, RankSteps]:
    ranks = load_ranks(session, run)
    each = LINES // max(1, len(ranks))
    found = {}
    for rank in ranks:
        newest = list(islice(load_newest_lines(session, run, rank), each))
        found[rank] = read_lines(rank, newest[::-1]).steps
    return found
