"""What does a criterion see on each rank? One number, and how far missing samples could move it.

`low` and `high` bound the aggregate whatever the missing samples were; a bound beyond the fail
threshold is the only way in which incomplete evidence may fail a criterion (design, Verdicts).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gonogo.contract.canonical import mean_of, rounded
from gonogo.contract.criterion import Aggregate, Criterion, Metric
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.rules import Rules
from gonogo.judge.facts.metrics import (
    METRICS,
    MetricRow,
    Owed,
    metric_row,
    slope,
)
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.packages import ERRORS, failure

Pairs = Sequence[tuple[int, float]]


class Bounds(NamedTuple):
    """An aggregate over what is there, and its bounds whatever the missing samples were."""

    value: float
    low: float
    high: float


Bound = Callable[[Pairs, int, int], Bounds]
"""(finite samples by step, number missing, last step) → bounds."""


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile with linear interpolation (q = 0.5: the median)."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def _quantile_bounds(q: float) -> Bound:
    def bounds(pairs: Pairs, missing: int, last_step: int) -> Bounds:
        values = sorted(value for _, value in pairs)
        value = quantile(values, q)
        if not missing:
            return Bounds(value, value, value)
        # the missing samples may lie below all others, or above them
        place = q * (len(values) + missing - 1)
        below, above = math.floor(place) - missing, math.ceil(place)
        low = values[below] if below >= 0 else -math.inf
        return Bounds(value, low, values[above] if above < len(values) else math.inf)

    return bounds


def _min(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = min(value for _, value in pairs)
    return Bounds(value, -math.inf if missing else value, value)


def _max(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = max(value for _, value in pairs)
    return Bounds(value, value, math.inf if missing else value)


def _count(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    return Bounds(len(pairs), len(pairs), len(pairs) + missing)


def _free(aggregate: Callable[[Pairs], float]) -> Bound:
    """Return bounds of an aggregate that one missing sample can move anywhere."""

    def bounds(pairs: Pairs, missing: int, last_step: int) -> Bounds:
        value = aggregate(pairs)
        return Bounds(value, -math.inf, math.inf) if missing else Bounds(value, value, value)

    return bounds


def _last(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    step, value = pairs[-1]
    return _free(lambda pairs: value)(pairs, missing if step != last_step else 0, last_step)


AGGREGATES: dict[Aggregate, Bound] = {
    Aggregate.MIN: _min,
    Aggregate.MAX: _max,
    Aggregate.MEAN: _free(lambda pairs: mean_of([value for _, value in pairs])),
    Aggregate.MEDIAN: _quantile_bounds(0.5),
    Aggregate.P95: _quantile_bounds(0.95),
    Aggregate.LAST: _last,
    Aggregate.COUNT: _count,
    Aggregate.SLOPE: _free(slope),
    Aggregate.ALL_FINITE: _free(lambda pairs: 1.0),
}
"""Samples that are not finite are counted separately; `all_finite` needs only that count."""

FULL_COVERAGE = frozenset(
    {Aggregate.MIN, Aggregate.MAX, Aggregate.ALL_FINITE, Aggregate.COUNT, Aggregate.LAST}
)
"""Aggregates that one missing sample could change; the others need 95 %."""

PARTIAL_SHARE = 0.95


MAX_BLOCKS = 64
"""Block means kept per measure and rank."""


def needed_share(criterion: Criterion) -> float:
    """Return the share of the owed samples below which a criterion is inconclusive."""
    row = metric_row(criterion.metric)
    if row is not None and row.statistic is not None:
        return PARTIAL_SHARE
    return 1.0 if criterion.aggregate in FULL_COVERAGE else PARTIAL_SHARE


def is_of_several(criterion: Criterion) -> bool:
    """Say whether it asks how samples differ: one alone has no slope and no spread."""
    row = metric_row(criterion.metric)
    if row is not None and row.statistic is not None:
        return criterion.metric in (Metric.STEP_CV, Metric.GPU_MEM_SLOPE)
    return criterion.aggregate is Aggregate.SLOPE


def open_ended(aggregate: Aggregate, row: MeasureRow) -> MeasureRow:
    """Return what a rank's samples bound where nobody knows how many more there would have been."""
    low = row.low if aggregate in (Aggregate.MAX, Aggregate.COUNT) else -math.inf
    high = row.high if aggregate is Aggregate.MIN else math.inf
    return row.model_copy(update={"low": low, "high": high})


def build_measure(
    criterion: Criterion,
    ranks: Mapping[int, RankSteps],
    rules: Rules,
    failures: list[Doubt] | None = None,
) -> Measure:
    """Return what a criterion sees, per rank that wrote anything; without its package, nothing.

    Args:
        criterion: what is asked.
        ranks: rank → its steps.
        rules: of the run.
        failures: receives a doubt where another package's metric raises an error.
    """
    row = metric_row(criterion.metric)
    window = rules.window(criterion)
    said = f"{window.start}..{window.stop - 1}" if window else "none"
    if row is None:
        return Measure(window=said, ranks={})
    try:
        measured = {
            str(rank): _measure_rank(criterion, row, ranks[rank], rules, window)
            for rank in sorted(ranks)
            if rank in rules.ranks()
        }
    except ERRORS as error:
        if criterion.metric in METRICS:
            raise
        name, why = str(criterion.metric), failure(error)
        if failures is not None:
            failures.append(Doubt(kind=DoubtKind.METRIC_MISSING, name=name, found=why))
        measured = {}
    return Measure(window=said, ranks=measured)


def _measure_rank(
    criterion: Criterion, row: MetricRow, steps: RankSteps, rules: Rules, window: range
) -> MeasureRow:
    """Return what the criterion sees on one rank."""
    samples = row.samples(steps, rules)
    owed = _owed(row, steps, rules, window, samples)
    pairs = sorted((step, value) for step, value in samples.items() if step in owed)
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    counted = MeasureRow(samples=len(pairs), owed=len(owed), non_finite=len(pairs) - len(finite))
    if not finite:
        return counted
    missing = max(len(owed), criterion.min_samples) - len(finite)
    last = max(owed) if isinstance(owed, frozenset) else owed[-1]
    bound, statistic = AGGREGATES[criterion.aggregate], row.statistic
    if statistic is not None:
        bound = _free(lambda pairs: statistic(pairs, rules))
    bounds = bound(finite, missing, last)
    return counted.model_copy(
        update={
            "value": rounded(float(bounds.value)),
            "low": rounded(float(bounds.low)),
            "high": rounded(float(bounds.high)),
            "blocks": block_means([value for _, value in finite]),
        }
    )


def block_means(values: Sequence[float]) -> list[float]:
    """Return the means of up to `MAX_BLOCKS` blocks of consecutive samples, of equal size.

    Campaigns compare runs by them: a mean alone has no spread.
    """
    size = max(1, math.ceil(len(values) / MAX_BLOCKS))
    blocks = (values[first : first + size] for first in range(0, len(values), size))
    return [rounded(mean_of(block)) for block in blocks]


def _owed(
    row: MetricRow, steps: RankSteps, rules: Rules, window: range, samples: Mapping[int, float]
) -> range | frozenset[int]:
    """Return the steps that owe a sample; an evaluation counts where none was due, too."""
    if row.owed is Owed.ONCE:
        return range(rules.last_step, rules.last_step + 1)
    if row.owed is Owed.EVERY_EVAL:
        if not window:
            return window
        told, due = frozenset(samples) | steps.evaluated_by_any, rules.evals(window)
        said = told.intersection(window)
        if not said.issubset(due):
            return said.union(due)
        return due or said or range(rules.last_step, rules.last_step + 1)
    excused = row.excused(steps, rules)
    return frozenset(step for step in window if step not in excused) if excused else window
