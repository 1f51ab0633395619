"""What did each rank do? Numbers from its heartbeats, by the functions that facts are made with."""

import math
import statistics
from collections.abc import Iterable, Mapping

from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import Metric
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.order import Order
from gonogo.judge.measure import quantile
from gonogo.judge.metrics import METRICS
from gonogo.judge.rules import build_rules
from gonogo.judge.scope import Scope, build_scope
from gonogo.judge.steps import RankSteps
from service.report.beats import RankBeats
from service.report.view import SECTIONS, RankNumbers, Series
from service.series import downsample

POINTS = 1_000
"""Points of a curve, at most."""


def build_numbers(order: Order | None, ranks: Mapping[int, RankBeats]) -> tuple[RankNumbers, ...]:
    """Return the numbers of every rank of a run, by rank.

    Args:
        order: what was ordered; None leaves out what depends on it.
        ranks: rank → what it said.
    """
    scope = build_scope(build_rules(order))
    return tuple(_numbers(rank, ranks[rank], scope) for rank in sorted(ranks))


def _numbers(rank: int, said: RankBeats, scope: Scope | None) -> RankNumbers:
    steps = said.steps
    progress = [beat for _, beat in sorted(steps.said[Msg.PROGRESS].items())]
    times = sorted(steps.step_times().items())
    seconds = [value for _, value in times]
    losses = [(beat.step, beat.loss) for beat in progress if beat.loss is not None]
    tok_s = sorted(METRICS[Metric.TOKS_PER_S].samples(steps, scope).items()) if scope else []
    sections = _sections(steps)
    evals = sorted(steps.evals.items())
    return RankNumbers(
        rank=rank,
        final_step=steps.last_step,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        last_val_loss=evals[-1][1] if evals else None,
        median_tok_s=_median(value for _, value in tok_s),
        median_step_s=_median(seconds),
        p95_step_s=rounded(quantile(seconds, 0.95)) if seconds else None,
        median_fetch_s=_median(beat.dt_fetch_s for beat in progress),
        loader_ready_s=said.ready_s,
        peak_reserved_mb=_peak(beat.gpu_mem_reserved for beat in progress),
        peak_alloc_mb=_peak(beat.gpu_mem_alloc for beat in progress),
        peak_rss_mb=_peak(beat.host_rss_mb for beat in progress),
        sections_s={name: _median(value for _, value in rows) for name, rows in sections.items()},
        loss=_curve(losses),
        val_loss=_curve(evals),
        tok_s=_curve(tok_s),
        memory_mb=_curve(_memory(progress)),
        sections={name: _curve(rows) for name, rows in sections.items()},
    )


def _memory(progress: Iterable[Heartbeat]) -> list[tuple[int, float]]:
    """Return the reserved device memory, or the host's where there is no device."""
    rows = [
        (beat.step, beat.gpu_mem_reserved if beat.gpu_mem_reserved else beat.host_rss_mb)
        for beat in progress
    ]
    return [(step, value) for step, value in rows if value is not None]


def _sections(steps: RankSteps) -> Mapping[str, list[tuple[int, float]]]:
    rows = [
        (step, beat.step_sections)
        for step, beat in sorted(steps.said[Msg.STEP_END].items())
        if beat.step_sections is not None
    ]
    if not rows:
        return {}
    return {name: [(step, getattr(row, name)) for step, row in rows] for name in SECTIONS}


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _median(values: Iterable[float | None]) -> float | None:
    found = _finite(values)
    return rounded(statistics.median(found)) if found else None


def _peak(values: Iterable[float | None]) -> float | None:
    return max(_finite(values), default=None)


def _curve(rows: Iterable[tuple[int, float]]) -> Series:
    return tuple(downsample([row for row in rows if math.isfinite(row[1])], POINTS))
