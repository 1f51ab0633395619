"""What does each criterion of a plan say? Pass, fail, inconclusive or error, never a guess.

A criterion reads the samples that were measured. Certain failure comes first, then what is missing,
then the threshold. The built-in criteria are in `built_in`.
"""

import math
from dataclasses import dataclass

from gonogo.contract.canonical import added, rounded
from gonogo.contract.criterion import Aggregate, Criterion, GateSeverity, Grey
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.order import Rules
from gonogo.judge.facts.metrics import Owed, absent_text, fewest_samples, metric_row, needed_share

PASS, FAIL = CriterionOutcome.PASS, CriterionOutcome.FAIL
INCONCLUSIVE, ERROR = CriterionOutcome.INCONCLUSIVE, CriterionOutcome.ERROR
BOUNDS = ("pass_above", "pass_below", "fail_above", "fail_below")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a criterion makes of the samples."""

    outcome: CriterionOutcome
    evidence: str
    observed: float | str | None = None
    """None where nothing was seen that speaks against the criterion."""
    grey: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """The thresholds of a criterion, which lie on one side of it."""

    pass_at: float
    fail_at: float
    at_least: bool
    words: str

    def fails(self, value: float) -> bool:
        """Say whether a value fails; the threshold itself does not."""
        return value < self.fail_at if self.at_least else value > self.fail_at


def evaluate(criterion: Criterion, measure: Measure | None, world_size: int) -> CriterionResult:
    """Return what one criterion of a plan says."""
    ranks = measure.ranks if measure else {}
    rows = [ranks.get(str(rank), MeasureRow()) for rank in range(world_size)]
    reading = _read(criterion, rows)
    severity = criterion.severity
    excused = reading.grey and criterion.grey is Grey.CONDITIONAL
    if excused and severity is GateSeverity.REQUIRED:
        severity = GateSeverity.CONDITIONAL
    said = {name: getattr(criterion, name) for name in BOUNDS}
    return CriterionResult(
        id=criterion.id,
        severity=severity,
        outcome=reading.outcome,
        observed=reading.observed,
        threshold={name: value for name, value in said.items() if value is not None} or None,
        window=measure.window if measure else None,
        samples=min((row.samples for row in rows), default=0),
        evidence=reading.evidence,
    )


def is_unseen(row: CriterionResult) -> bool:
    """Say whether a criterion is undecided for want of samples: all that a waiver excuses."""
    return row.outcome in (INCONCLUSIVE, ERROR) and row.observed is None


def was_seen_failing(row: CriterionResult) -> bool:
    """Say whether what was seen of a whole run does not pass; advisory criteria never count."""
    seen = row.outcome is not PASS and not is_unseen(row)
    return seen and row.severity is not GateSeverity.ADVISORY


def never_passes(criterion: Criterion, measure: Measure | None, rules: Rules) -> bool:
    """Say whether a criterion of an ended run does not pass whatever the missing samples are."""
    metric = metric_row(criterion.metric)
    if measure is None or metric is None or criterion.severity is GateSeverity.ADVISORY:
        return False
    if metric.owed in (Owed.ONCE, Owed.AS_TOLD):
        return False  # it is known at the end of the run
    if metric.owed is Owed.EVERY_EVAL and not rules.evals(rules.window(criterion)):
        return False  # nobody knows how many evaluations were still to come
    rows = [measure.ranks.get(str(rank), MeasureRow()) for rank in rules.ranks()]
    at_best = criterion.model_copy(update={"fail_above": None, "fail_below": None})
    if criterion.pass_above is None and criterion.pass_below is None:
        at_best = criterion
    return _certain(at_best, rows) is not None


def _read(criterion: Criterion, rows: list[MeasureRow]) -> Reading:
    if metric_row(criterion.metric) is None:
        return Reading(INCONCLUSIVE, absent_text(criterion.metric))
    what = f"{criterion.aggregate.value} of {criterion.metric}"
    if "profile" in (criterion.pass_above, criterion.pass_below):
        text = f"{what}: it must reach the profile's floor, and the order does not say what that is"
        return Reading(INCONCLUSIVE, text)
    certain = _certain(criterion, rows)
    if certain is not None:
        return certain
    values = [row.value for row in rows if row.value is not None]
    value = None
    if values and len(values) == len(rows):
        value = rounded(_over_ranks(criterion, values))
    whole = _weigh(criterion, value)
    short = _shortfall(criterion, rows)
    if short is None:
        return whole
    outcome, text = short
    if value is None or whole.outcome is PASS or criterion.aggregate is Aggregate.COUNT:
        return Reading(outcome, f"{what}: {text}")
    text = f"{what}: {text}; what is there does not pass: {whole.evidence}"
    return Reading(outcome, text, value)


def _certain(criterion: Criterion, rows: list[MeasureRow]) -> Reading | None:
    """Return the failure that no missing sample could undo; None without one."""
    what = f"{criterion.aggregate.value} of {criterion.metric}"
    bad = sum(row.non_finite for row in rows)
    if bad:
        fails = criterion.aggregate is Aggregate.ALL_FINITE or criterion.on_nan == "fail"
        return Reading(FAIL if fails else ERROR, f"{what}: {bad} samples are not finite", "NaN")
    limit = _limit(criterion)
    if limit is None or not rows:
        return None
    whole = [row.samples >= max(row.owed, criterion.min_samples) for row in rows]
    unknown = math.inf if limit.at_least else -math.inf
    metric = metric_row(criterion.metric)
    kept = (Aggregate.MIN,) if limit.at_least else (Aggregate.MAX, Aggregate.COUNT)
    # no further sample makes a minimum, a maximum or a count better
    stays = metric is not None and metric.statistic is None and criterion.aggregate in kept
    ends = [
        row.value if (stays or ended) and row.value is not None else unknown
        for row, ended in zip(rows, whole, strict=True)
    ]
    best = _over_ranks(criterion, ends)
    if not limit.fails(best):
        return None
    end = "" if all(whole) else "at most " if limit.at_least else "at least "
    left = "" if all(whole) else " whatever is missing"
    text = f"{what} is {end}{best:g}{left}; {limit.words} was asked"
    return Reading(FAIL, text, rounded(best))


def _shortfall(criterion: Criterion, rows: list[MeasureRow]) -> tuple[CriterionOutcome, str] | None:
    """Return what missing samples mean, or None when there are enough."""
    empty = [str(rank) for rank, row in enumerate(rows) if row.samples == 0]
    if empty or not rows:
        where = f"rank {', '.join(empty)}" if empty else "any rank"
        return CriterionOutcome(criterion.on_missing), f"no samples of {where}"
    fewest = min(row.samples for row in rows)
    least = max(criterion.min_samples, fewest_samples(criterion))
    if fewest < least:
        return INCONCLUSIVE, f"{fewest} sample{'s' * (fewest > 1)}, {least} are needed"
    share = min(row.samples / max(1, row.owed) for row in rows)
    needed = needed_share(criterion)
    if share < needed:
        return INCONCLUSIVE, f"{share:.1%} of the samples are there, {needed:.0%} are needed"
    return None


def _weigh(criterion: Criterion, value: float | None) -> Reading:
    """Return what a value says beside the thresholds."""
    what = f"{criterion.aggregate.value} of {criterion.metric}"
    limit = _limit(criterion)
    finite = value is None or math.isfinite(value)
    if criterion.aggregate is Aggregate.ALL_FINITE and finite:
        return Reading(PASS, f"{what}: every sample is finite", value)
    if limit is None or value is None or not finite:
        return Reading(INCONCLUSIVE, f"{what}: the samples of some rank have no finite value")
    if value >= limit.pass_at if limit.at_least else value <= limit.pass_at:
        return Reading(PASS, f"{what} is {value:g}, {limit.words}", value)
    if limit.fails(value):
        return Reading(FAIL, f"{what} is {value:g}; {limit.words} was asked", value)
    text = f"in the grey zone: {what} is {value:g}, between {limit.fail_at:g} and {limit.pass_at:g}"
    return Reading(INCONCLUSIVE, text, value, grey=True)


def _over_ranks(criterion: Criterion, values: list[float]) -> float:
    if any(map(math.isnan, values)):
        return math.nan  # what is unknown of one rank is unknown of all
    if criterion.over_ranks == "min":
        return min(values)
    if criterion.over_ranks == "max":
        return max(values)
    total = added(sorted(values))
    return total / len(values) if criterion.over_ranks == "mean" else total


def _limit(criterion: Criterion) -> Limit | None:
    """Return the thresholds; one alone is both. `profile` was filled in when the order was made."""
    for bounds, at_least in (
        ((criterion.pass_above, criterion.fail_below), True),
        ((criterion.pass_below, criterion.fail_above), False),
    ):
        numbers = [float(row) for row in bounds if isinstance(row, int | float)]
        if numbers:
            words = f"{'≥' if at_least else '≤'} {numbers[0]:g}"
            return Limit(numbers[0], numbers[-1], at_least, words)
    return None
