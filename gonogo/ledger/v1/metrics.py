"""What could a criterion of release 0.1 look at? One row per metric."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gonogo.ledger.v1.rules import Scope
from gonogo.ledger.v1.steps import RankSteps

Samples = Mapping[int, float]
Pairs = Sequence[tuple[int, float]]
EVERY_STEP, EVERY_EVAL, ONCE = "every_step", "every_eval", "once"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """How one metric is measured."""

    samples: Callable[[RankSteps, Scope], Samples]
    owed: str = EVERY_STEP
    statistic: Callable[[Pairs, Scope], float] | None = None
    excused: Callable[[RankSteps], frozenset[int]] = lambda steps: frozenset()


def slope(pairs: Pairs) -> float:
    """Return the least-squares slope of value over step; 0 for fewer than two steps."""
    if len(pairs) < 2:
        return 0.0
    mean_x = math.fsum(x for x, _ in pairs) / len(pairs)
    mean_y = math.fsum(y for _, y in pairs) / len(pairs)
    over = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return over / math.fsum((x - mean_x) ** 2 for x, _ in pairs)


def _progress(name: str) -> Callable[[RankSteps, Scope], Samples]:
    def samples(steps: RankSteps, scope: Scope) -> Samples:
        read = ((step, getattr(beat, name)) for step, beat in steps.said["progress"].items())
        return {step: float(value) for step, value in read if value is not None}

    return samples


def _step_times(steps: RankSteps, scope: Scope) -> Samples:
    return steps.step_times()


def _toks_per_s(steps: RankSteps, scope: Scope) -> Samples:
    ends = steps.said["step_end"]
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
    return frozenset(steps.said["progress"].keys() - steps.applied().keys())


def _first_loss(steps: RankSteps, scope: Scope) -> Samples:
    beat = steps.said["progress"].get(1)
    return {} if beat is None or beat.loss is None else {scope.last_step: beat.loss}


def _evals(steps: RankSteps, scope: Scope) -> Samples:
    return steps.evals


def _steps_completed(steps: RankSteps, scope: Scope) -> Samples:
    return {scope.last_step: float(max(steps.last_step, scope.first_step - 1))}


def _gaps(steps: RankSteps, scope: Scope) -> Samples:
    return {scope.last_step: float(steps.gaps)} if steps.boots else {}


def _device_hours(steps: RankSteps, scope: Scope) -> Samples:
    starts, ends = steps.said["step_start"], steps.said["step_end"]
    if not starts or not ends:
        return {}
    seconds = ends[max(ends)].mono - starts[min(starts)].mono
    return {scope.last_step: seconds / 3600 * scope.world_size}


def _unseen(steps: RankSteps, scope: Scope) -> Samples:
    return {}


def _variation(pairs: Pairs, scope: Scope) -> float:
    values = [value for _, value in pairs]
    mean = math.fsum(values) / len(values)
    return statistics.pstdev(values, mean) / mean if mean else 0.0


def _slope(pairs: Pairs, scope: Scope) -> float:
    return slope(pairs)


def _rest_s(pairs: Pairs, scope: Scope) -> float:
    steps = scope.steps_after or scope.last_step
    return statistics.median(value for _, value in pairs) * steps


METRICS: dict[str, MetricRow] = {
    "steps_completed": MetricRow(samples=_steps_completed, owed=ONCE),
    "loss": MetricRow(samples=_progress("loss")),
    "loss_first": MetricRow(samples=_first_loss, owed=ONCE),
    "val_loss": MetricRow(samples=_evals, owed=EVERY_EVAL),
    "toks_per_s": MetricRow(samples=_toks_per_s),
    "dt_step_s": MetricRow(samples=_step_times),
    "step_cv": MetricRow(samples=_step_times, statistic=_variation),
    "fetch_share": MetricRow(samples=_fetch_share),
    "gpu_mem_reserved_mb": MetricRow(samples=_progress("gpu_mem_reserved")),
    "gpu_mem_slope_mb_per_step": MetricRow(samples=_progress("gpu_mem_reserved"), statistic=_slope),
    "host_rss_mb": MetricRow(samples=_progress("host_rss_mb")),
    "gpu_util": MetricRow(samples=_unseen),
    "gpu_util_ratio": MetricRow(samples=_unseen),
    "grad_norm": MetricRow(samples=_grad_norms, excused=_skipped),
    "heartbeat_gaps": MetricRow(samples=_gaps, owed=ONCE),
    "forecast_s": MetricRow(samples=_step_times, statistic=_rest_s),
    "cost": MetricRow(samples=_device_hours, owed=ONCE),
    "gate_entropy": MetricRow(samples=_progress("gate_entropy")),
}
