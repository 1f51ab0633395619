"""What does a criterion see on each rank? One number, and how many of its samples are there."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gonogo.contract.canonical import mean_of, rounded
from gonogo.contract.criterion import Aggregate, Criterion
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.order import Rules
from gonogo.judge.facts.metrics import METRICS, MetricRow, Owed, metric_row, slope
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.registry import ERRORS, failure

Pairs = Sequence[tuple[int, float]]
"""Finite samples by step, ascending."""


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile with linear interpolation (q = 0.5: the median)."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def _over(aggregate: Callable[[list[float]], float], pairs: Pairs) -> float:
    return aggregate([value for _, value in pairs])


AGGREGATES: dict[Aggregate, Callable[[Pairs], float]] = {
    Aggregate.MIN: partial(_over, min),
    Aggregate.MAX: partial(_over, max),
    Aggregate.MEAN: partial(_over, mean_of),
    Aggregate.MEDIAN: partial(_over, partial(quantile, q=0.5)),
    Aggregate.P95: partial(_over, partial(quantile, q=0.95)),
    Aggregate.LAST: lambda pairs: pairs[-1][1],
    Aggregate.COUNT: len,
    Aggregate.SLOPE: slope,
    Aggregate.ALL_FINITE: lambda pairs: 1.0,
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
    """Return the share of the required samples below which a criterion is inconclusive."""
    row = metric_row(criterion.metric)
    whole = row is None or row.statistic is None
    return 1.0 if whole and criterion.aggregate in FULL_COVERAGE else PARTIAL_SHARE


def fewest_samples(criterion: Criterion) -> int:
    """Return how many samples say anything: a slope and a spread need two."""
    row = metric_row(criterion.metric)
    if row is not None and row.statistic is not None:
        return row.fewest
    return 2 if criterion.aggregate is Aggregate.SLOPE else 1


def build_measure(
    criterion: Criterion,
    ranks: Mapping[int, RankSteps],
    rules: Rules,
    failures: list[Doubt] | None = None,
) -> Measure:
    """Return what a criterion sees, per rank that wrote anything; without its package, nothing.

    Args:
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
    samples, excused = row.samples(steps, rules), row.excused(steps, rules)
    owed = _owed(row, steps, rules, window, samples)
    if excused:
        owed = frozenset(step for step in owed if step not in excused)
    pairs = sorted((step, value) for step, value in samples.items() if step in owed)
    finite = [(step, value) for step, value in pairs if math.isfinite(value)]
    counted = MeasureRow(samples=len(pairs), owed=len(owed), non_finite=len(pairs) - len(finite))
    if len(finite) < fewest_samples(criterion):
        return counted
    if row.statistic is None:
        value = AGGREGATES[criterion.aggregate](finite)
    else:
        value = row.statistic(finite, rules)
    blocks = block_means([sample for _, sample in finite])
    return counted.model_copy(update={"value": rounded(float(value)), "blocks": blocks})


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
    """Return the steps that need a sample; an evaluation counts also where none was due."""
    last = range(rules.last_step, rules.last_step + 1)
    if row.owed is Owed.ONCE:
        return last
    if row.owed is Owed.AS_TOLD:
        return frozenset(step for step in samples if step in window) or last
    if row.owed is Owed.EVERY_EVAL and window:
        told = steps.evaluated_by_any.union(samples)
        return told.intersection(window).union(rules.evals(window)) or last
    return window
