"""What can a criterion look at? One row per metric: where its samples come from.

A new metric is a name in `gonogo.contract.criterion.Metric` and a row here. Samples are step →
value of one rank; speeds and step times are recomputed from the rank's own clock, never taken from
what the trainer reports about itself (R16, R70).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gonogo.contract.criterion import Metric
from gonogo.contract.heartbeat import Msg
from gonogo.judge.scope import Scope
from gonogo.judge.steps import RankSteps

Samples = Mapping[int, float]
Statistic = Callable[[Sequence[tuple[int, float]], Scope], float]


class Owed(StrEnum):
    """Which samples must be there."""

    EVERY_STEP = "every_step"
    EVERY_EVAL = "every_eval"
    ONCE = "once"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """How one metric is measured."""

    samples: Callable[[RankSteps, Scope], Samples]
    owed: Owed = Owed.EVERY_STEP
    statistic: Statistic | None = None
    """When set, the metric is one number over the window and the criterion's aggregate is moot."""
    excused: Callable[[RankSteps], frozenset[int]] = lambda steps: frozenset()
    """Steps that rightly have no sample."""


def slope(pairs: Sequence[tuple[int, float]]) -> float:
    """Return the least-squares slope of value over step; 0 for fewer than two steps."""
    if len(pairs) < 2:
        return 0.0
    mean_x = math.fsum(x for x, _ in pairs) / len(pairs)
    mean_y = math.fsum(y for _, y in pairs) / len(pairs)
    over = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return over / math.fsum((x - mean_x) ** 2 for x, _ in pairs)


def _progress(name: str) -> Callable[[RankSteps, Scope], Samples]:
    """Return a source that reads one field of the progress lines."""

    def samples(steps: RankSteps, scope: Scope) -> Samples:
        read = ((step, getattr(beat, name)) for step, beat in steps.said[Msg.PROGRESS].items())
        return {step: float(value) for step, value in read if value is not None}

    return samples


def _step_times(steps: RankSteps, scope: Scope) -> Samples:
    return steps.step_times()


def _toks_per_s(steps: RankSteps, scope: Scope) -> Samples:
    """Global tokens of a step over its seconds; the ordered tokens where the order says them."""
    ends = steps.said[Msg.STEP_END]
    found = {}
    for step, dt_s in steps.step_times().items():
        tokens = scope.tokens_per_step or ends[step].tokens
        if tokens is not None:
            found[step] = tokens / dt_s
    return found


def _fetch_share(steps: RankSteps, scope: Scope) -> Samples:
    times = steps.step_times()
    fetch_s = _progress("dt_fetch_s")(steps, scope)
    return {step: fetch_s[step] / dt_s for step, dt_s in times.items() if step in fetch_s}


def _grad_norms(steps: RankSteps, scope: Scope) -> Samples:
    rows = steps.applied().items()
    return {step: beat.grad_norm for step, beat in rows if beat.grad_norm is not None}


def _skipped(steps: RankSteps) -> frozenset[int]:
    return frozenset(steps.said[Msg.PROGRESS].keys() - steps.applied().keys())


def _first_loss(steps: RankSteps, scope: Scope) -> Samples:
    """The loss of step 1: a resumed attempt has none."""
    beat = steps.said[Msg.PROGRESS].get(1)
    return {} if beat is None or beat.loss is None else {scope.last_step: beat.loss}


def _evals(steps: RankSteps, scope: Scope) -> Samples:
    return steps.evals


def _steps_completed(steps: RankSteps, scope: Scope) -> Samples:
    return {scope.last_step: float(max(steps.last_step, scope.first_step - 1))}


def _gaps(steps: RankSteps, scope: Scope) -> Samples:
    return {scope.last_step: float(steps.gaps)} if steps.boots else {}


def _device_hours(steps: RankSteps, scope: Scope) -> Samples:
    """Hours between the first step's start and the last step's end, times the ranks."""
    starts, ends = steps.said[Msg.STEP_START], steps.said[Msg.STEP_END]
    if not starts or not ends:
        return {}
    seconds = ends[max(ends)].mono - starts[min(starts)].mono
    return {scope.last_step: seconds / 3600 * scope.world_size}


def _unseen(steps: RankSteps, scope: Scope) -> Samples:
    """Heartbeats do not carry it: a criterion on it finds nothing and says so."""
    return {}


def _variation(pairs: Sequence[tuple[int, float]], scope: Scope) -> float:
    values = [value for _, value in pairs]
    mean = math.fsum(values) / len(values)
    return statistics.pstdev(values, mean) / mean if mean else 0.0


def _slope(pairs: Sequence[tuple[int, float]], scope: Scope) -> float:
    return slope(pairs)


def _rest_s(pairs: Sequence[tuple[int, float]], scope: Scope) -> float:
    """Seconds that the phases after this one take at this run's median step (R18)."""
    steps = scope.steps_after or scope.last_step
    return statistics.median(value for _, value in pairs) * steps


METRICS: dict[Metric, MetricRow] = {
    Metric.STEPS_COMPLETED: MetricRow(samples=_steps_completed, owed=Owed.ONCE),
    Metric.LOSS: MetricRow(samples=_progress("loss")),
    Metric.LOSS_FIRST: MetricRow(samples=_first_loss, owed=Owed.ONCE),
    Metric.VAL_LOSS: MetricRow(samples=_evals, owed=Owed.EVERY_EVAL),
    Metric.TOKS_PER_S: MetricRow(samples=_toks_per_s),
    Metric.DT_STEP_S: MetricRow(samples=_step_times),
    Metric.STEP_CV: MetricRow(samples=_step_times, statistic=_variation),
    Metric.FETCH_SHARE: MetricRow(samples=_fetch_share),
    Metric.GPU_MEM_RESERVED_MB: MetricRow(samples=_progress("gpu_mem_reserved")),
    Metric.GPU_MEM_SLOPE: MetricRow(samples=_progress("gpu_mem_reserved"), statistic=_slope),
    Metric.HOST_RSS_MB: MetricRow(samples=_progress("host_rss_mb")),
    Metric.GPU_UTIL: MetricRow(samples=_unseen),
    Metric.GPU_UTIL_RATIO: MetricRow(samples=_unseen),
    Metric.GRAD_NORM: MetricRow(samples=_grad_norms, excused=_skipped),
    Metric.HEARTBEAT_GAPS: MetricRow(samples=_gaps, owed=Owed.ONCE),
    Metric.FORECAST_S: MetricRow(samples=_step_times, statistic=_rest_s),
    Metric.COST: MetricRow(samples=_device_hours, owed=Owed.ONCE),
    Metric.GATE_ENTROPY: MetricRow(samples=_progress("gate_entropy")),
}
