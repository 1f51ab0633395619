"""What did a criterion of release 0.1 see on each rank? One number, and its bounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.canonical import rounded, wire_number
from gonogo.ledger.v1.metrics import EVERY_EVAL, METRICS, ONCE, MetricRow, Pairs, slope
from gonogo.ledger.v1.rules import Criterion, Scope
from gonogo.ledger.v1.steps import RankSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """An aggregate over what is there, and its bounds over whatever is not."""

    value: float
    low: float
    high: float


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile with linear interpolation."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def _quantile_bounds(q: float) -> Callable[[Pairs, int, int], Bounds]:
    def bounds(pairs: Pairs, missing: int, last_step: int) -> Bounds:
        values = [value for _, value in pairs]
        value = quantile(values, q)
        if not missing:
            return Bounds(value=value, low=value, high=value)
        place = q * (len(values) + missing - 1)
        low = sorted([-math.inf] * missing + values)[math.floor(place)]
        high = sorted(values + [math.inf] * missing)[math.ceil(place)]
        return Bounds(value=value, low=low, high=high)

    return bounds


def _min(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = min(value for _, value in pairs)
    return Bounds(value=value, low=-math.inf if missing else value, high=value)


def _max(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = max(value for _, value in pairs)
    return Bounds(value=value, low=value, high=math.inf if missing else value)


def _free(aggregate: Callable[[Pairs], float]) -> Callable[[Pairs, int, int], Bounds]:
    def bounds(pairs: Pairs, missing: int, last_step: int) -> Bounds:
        value = aggregate(pairs)
        if missing:
            return Bounds(value=value, low=-math.inf, high=math.inf)
        return Bounds(value=value, low=value, high=value)

    return bounds


def _last(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    step, value = pairs[-1]
    if missing and step != last_step:
        return Bounds(value=value, low=-math.inf, high=math.inf)
    return Bounds(value=value, low=value, high=value)


def _count(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    return Bounds(value=len(pairs), low=len(pairs), high=len(pairs) + missing)


def _mean(pairs: Pairs) -> float:
    return math.fsum(value for _, value in pairs) / len(pairs)


AGGREGATES: dict[str, Callable[[Pairs, int, int], Bounds]] = {
    "min": _min,
    "max": _max,
    "mean": _free(_mean),
    "median": _quantile_bounds(0.5),
    "p95": _quantile_bounds(0.95),
    "last": _last,
    "count": _count,
    "slope": _free(slope),
    "all_finite": _free(lambda pairs: 1.0),
}

FULL_COVERAGE = frozenset({"min", "max", "all_finite", "count", "last"})
PARTIAL_SHARE = 0.95


def needed_share(criterion: Criterion) -> float:
    """Return the share of the owed samples below which a criterion is inconclusive."""
    if METRICS[criterion.metric].statistic is not None:
        return PARTIAL_SHARE
    return 1.0 if criterion.aggregate in FULL_COVERAGE else PARTIAL_SHARE


def build_measure(
    criterion: Criterion, ranks: Mapping[int, RankSteps], scope: Scope
) -> dict[str, Any]:
    """Return what a criterion sees, as JSON."""
    row = METRICS[criterion.metric]
    window = scope.window(criterion)
    return {
        "window": f"{window.start}..{window.stop - 1}" if window else "none",
        "ranks": {
            str(rank): _measure_rank(criterion, row, ranks[rank], scope, window)
            for rank in sorted(ranks)
            if rank < scope.world_size
        },
    }


def _measure_rank(
    criterion: Criterion, row: MetricRow, steps: RankSteps, scope: Scope, window: range
) -> dict[str, Any]:
    samples = row.samples(steps, scope)
    owed = _owed_steps(row, steps, scope, window, samples)
    pairs = [(step, samples[step]) for step in owed if step in samples]
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    measured: dict[str, Any] = {
        "samples": len(pairs),
        "owed": len(owed),
        "non_finite": len(pairs) - len(finite),
        "value": None,
        "low": wire_number(-math.inf),
        "high": wire_number(math.inf),
    }
    if not finite:
        return measured
    missing = max(len(owed), criterion.min_samples) - len(finite)
    last = owed[-1]
    if row.statistic is None:
        bounds = AGGREGATES[criterion.aggregate](finite, missing, last)
    else:
        statistic = row.statistic
        bounds = _free(lambda pairs: statistic(pairs, scope))(finite, missing, last)
    for name in ("value", "low", "high"):
        measured[name] = wire_number(rounded(float(getattr(bounds, name))))
    return measured


def _owed_steps(
    row: MetricRow, steps: RankSteps, scope: Scope, window: range, samples: Mapping[int, float]
) -> list[int]:
    if row.owed == ONCE:
        return [scope.last_step]
    if row.owed == EVERY_EVAL:
        due = scope.evals(window)
        return due or sorted(step for step in samples if step in window) or [scope.last_step]
    excused = row.excused(steps)
    return [step for step in window if step not in excused]
