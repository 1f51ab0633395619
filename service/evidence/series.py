"""A number of a run over its steps, downsampled so that no peak is lost.

Each bucket of neighbouring steps gives its lowest and its highest value at their own steps.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from gonogo.contract.criterion import OWN_PREFIX, own_name
from gonogo.contract.heartbeat import Msg
from service.evidence.heartbeats import load_ranks, load_steps

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
        kept += _ends(points[start:end])
    return kept


def _ends(points: Iterable[Point]) -> list[Point]:
    points = list(points)
    low = min(points, key=lambda point: point[1])
    high = max(points, key=lambda point: point[1])
    return sorted({low, high})
