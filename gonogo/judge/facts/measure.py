"""What does a criterion see on each rank? One number, and how far missing samples could move it.

`low` and `high` bound the aggregate whatever the missing samples were; a bound beyond the fail
threshold is the only way in which incomplete evidence may fail a criterion (design, Verdicts).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from gonogo.contract.canonical import rounded
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
from gonogo.judge.facts.steps import RankSteps
from gonogo.watch.mean import mean_of
from gonogo.watch.packages import ERRORS, failure

Pairs = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """An aggregate over what is there, and its bounds over whatever is not."""

    value: float
    low: float
    high: float


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile with linear interpolation (q = 0.5: the median)."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def _quantile_bounds(q: float) -> Callable[[Pairs, int, int], Bounds]:
    def bounds(pairs: Pairs, missing: int, last_step: int) -> Bounds:
        values = sorted(value for _, value in pairs)
        value = quantile(values, q)
        if not missing:
            return Bounds(value=value, low=value, high=value)
        # whatever is missing may lie below all that is there, or above it
        place = q * (len(values) + missing - 1)
        below, above = math.floor(place) - missing, math.ceil(place)
        return Bounds(
            value=value,
            low=values[below] if below >= 0 else -math.inf,
            high=values[above] if above < len(values) else math.inf,
        )

    return bounds


def _min(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = min(value for _, value in pairs)
    return Bounds(value=value, low=-math.inf if missing else value, high=value)


def _max(pairs: Pairs, missing: int, last_step: int) -> Bounds:
    value = max(value for _, value in pairs)
    return Bounds(value=value, low=value, high=math.inf if missing else value)


def _free(aggregate: Callable[[Pairs], float]) -> Callable[[Pairs, int, int], Bounds]:
    """Return bounds of an aggregate that one missing sample can move anywhere."""

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
    return mean_of([value for _, value in pairs])


AGGREGATES: dict[Aggregate, Callable[[Pairs, int, int], Bounds]] = {
    Aggregate.MIN: _min,
    Aggregate.MAX: _max,
    Aggregate.MEAN: _free(_mean),
    Aggregate.MEDIAN: _quantile_bounds(0.5),
    Aggregate.P95: _quantile_bounds(0.95),
    Aggregate.LAST: _last,
    Aggregate.COUNT: _count,
    Aggregate.SLOPE: _free(slope),
    Aggregate.ALL_FINITE: _free(lambda pairs: 1.0),
}
"""Aggregate → (finite samples by step, number missing, last step owed) → bounds. The non-finite
samples are counted apart; `all_finite` needs no more than that count."""

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


def narrowed(criterion: Criterion, row: MeasureRow) -> MeasureRow:
    """Return what a rank's samples bound where no more come than are owed: of a mean, too.

    The others lie in the metric's own range: of 900 steps of 1000 that took twice too long, the
    mean is too long whatever the last hundred take.
    """
    metric = metric_row(criterion.metric)
    every = max(row.owed, criterion.min_samples)
    is_mean = criterion.aggregate is Aggregate.MEAN
    if metric is None or metric.statistic is not None or not is_mean or row.samples >= every:
        return row
    if row.value is None or not math.isfinite(row.value):
        return row
    seen = row.samples / every
    low, high = (row.value * seen + end * (1 - seen) for end in (metric.least, metric.most))
    return row.model_copy(update={"low": max(row.low, low), "high": min(row.high, high)})


def build_measure(
    criterion: Criterion,
    ranks: Mapping[int, RankSteps],
    rules: Rules,
    failures: list[Doubt] | None = None,
) -> Measure:
    """Return what a criterion sees, per rank that wrote anything; without its package, nothing.

    Another package's metric is given steps, and rules, of its own: what it makes of them no other
    one sees, and it is judged by none of it.

    Args:
        criterion: what is asked.
        ranks: rank → its steps.
        rules: of the run.
        failures: receives a doubt where another package's metric raises an error.
    """
    row = metric_row(criterion.metric)
    is_ours = criterion.metric in METRICS
    window = rules.window(criterion)
    said = f"{window.start}..{window.stop - 1}" if window else "none"
    if row is None:
        return Measure(window=said, ranks={})
    try:
        given = rules if is_ours else rules.model_copy(deep=True)
        measured = {
            str(rank): _measure_trainings(
                criterion, row, ranks[rank] if is_ours else deepcopy(ranks[rank]), given, window
            )
            for rank in sorted(ranks)
            if rank in rules.ranks()
        }
    except ERRORS as error:
        if is_ours:
            raise
        if failures is not None:
            failures.append(
                Doubt(
                    kind=DoubtKind.METRIC_FAILED, name=str(criterion.metric), found=failure(error)
                )
            )
        measured = {}
    return Measure(window=said, ranks=measured)


def _measure_trainings(
    criterion: Criterion, row: MetricRow, steps: RankSteps, rules: Rules, window: range
) -> MeasureRow:
    """Return what a rank's steps come to; of whole trainings in a row, what the worst does.

    One that told of no evaluation says nothing where the order does not ask for any.
    """
    measured = _measure_rank(criterion, row, steps, rules, window)
    if rules.steps is None:
        return measured
    asked = row.owed is not Owed.EVERY_EVAL or bool(rules.evals(window))
    for training in steps.trainings_before(rules.first_step, rules.steps):
        other = _measure_rank(criterion, row, training, rules, window)
        if asked or other.samples:
            measured = _worse(criterion, measured, other)
    return measured


def _worse(criterion: Criterion, one: MeasureRow, other: MeasureRow) -> MeasureRow:
    """Return the worse of each number of two trainings; they have no blocks of one course.

    One of a single sample has no slope and no spread: any value may be its own.
    """
    at_least = _asks_at_least(criterion)
    if is_of_several(criterion) and (one.samples == 1) != (other.samples == 1):
        told, alone = (other, one) if one.samples == 1 else (one, other)
        return told.model_copy(
            update={
                "non_finite": told.non_finite + alone.non_finite,
                "value": None,
                "low": -math.inf if at_least else told.low,
                "high": told.high if at_least else math.inf,
                "blocks": [],
            }
        )
    worst = min if at_least else max
    values = [row.value for row in (one, other) if row.samples or row.value is not None]
    known = [value for value in values if value is not None]
    fewer = min(one, other, key=lambda row: _enough(criterion, row))
    return one.model_copy(
        update={
            "samples": fewer.samples,
            "owed": fewer.owed,
            "non_finite": one.non_finite + other.non_finite,
            "value": worst(known) if known and len(known) == len(values) else None,
            "low": worst(one.low, other.low),
            "high": worst(one.high, other.high),
            "blocks": [],
        }
    )


def _enough(criterion: Criterion, row: MeasureRow) -> tuple[bool, float, int]:
    """Return how far the samples of a training are enough: the least has the fewest."""
    share = row.samples / max(1, row.owed)
    return row.samples >= criterion.min_samples, share, row.samples


def _asks_at_least(criterion: Criterion) -> bool:
    return criterion.pass_above is not None or criterion.fail_below is not None


def _measure_rank(
    criterion: Criterion, row: MetricRow, steps: RankSteps, rules: Rules, window: range
) -> MeasureRow:
    """Return what one training comes to; of several numbers of a step, what the worse one does."""
    samples = row.samples(steps, rules)
    measured = _measure_samples(criterion, row, steps, rules, window, samples)
    spans = row.spans(steps, rules)
    if not spans:
        return measured
    end = 0 if _asks_at_least(criterion) else 1
    worst = {**samples, **{step: span[end] for step, span in spans.items()}}
    other = _measure_samples(criterion, row, steps, rules, window, worst)
    kept = {"non_finite": other.non_finite, "blocks": other.blocks}
    return _worse(criterion, measured, other).model_copy(update=kept)


def _measure_samples(
    criterion: Criterion,
    row: MetricRow,
    steps: RankSteps,
    rules: Rules,
    window: range,
    samples: Mapping[int, float],
) -> MeasureRow:
    owed = _owed(row, steps, rules, window, samples)
    pairs = sorted((step, value) for step, value in samples.items() if step in owed)
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    counted = MeasureRow(samples=len(pairs), owed=len(owed), non_finite=len(pairs) - len(finite))
    if not finite:
        return counted
    missing = max(len(owed), criterion.min_samples) - len(finite)
    last = max(owed) if isinstance(owed, frozenset) else owed[-1]
    if row.statistic is None:
        bounds = AGGREGATES[criterion.aggregate](finite, missing, last)
    else:
        statistic = row.statistic
        bounds = _free(lambda pairs: statistic(pairs, rules))(finite, missing, last)
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
