"""What does each criterion say about the facts? Pass, fail, inconclusive or error, never a guess.

A plan's own criteria, evaluated from what was measured: certain failure first, then what is
missing, then the thresholds. The built-in ones are in `built_in`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from gonogo.contract.canonical import added, rounded
from gonogo.contract.criterion import Aggregate, Criterion, GateSeverity, Grey
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.rules import Rules
from gonogo.judge.facts.measure import is_of_several, narrowed, needed_share, open_ended
from gonogo.judge.facts.metrics import Early, Owed, absent_text, metric_row

PASS, FAIL = CriterionOutcome.PASS, CriterionOutcome.FAIL
INCONCLUSIVE, ERROR = CriterionOutcome.INCONCLUSIVE, CriterionOutcome.ERROR


UNKNOWN = MeasureRow()
"""What a rank with one sample tells of a slope or a spread: any value may be its own."""


class Zone(StrEnum):
    """Where a value lies; it decides how much a criterion that did not pass weighs."""

    CLEAR = "clear"
    """On one side of the thresholds."""
    GREY = "grey"
    """Between the pass and the fail threshold."""
    NOWHERE = "nowhere"
    """Nobody knows, for want of samples: all that a waiver excuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a criterion makes of the samples."""

    outcome: CriterionOutcome
    observed: float | None
    evidence: str
    zone: Zone = Zone.CLEAR


def evaluate(
    criterion: Criterion,
    measure: Measure | None,
    world_size: int,
) -> CriterionResult:
    """Return what one criterion of a plan says.

    Args:
        criterion: thresholds already filled from the profile.
        measure: what `build_measure` saw; None when nothing could be measured.
        world_size: number of ranks that must have been seen.
    """
    rows = _rank_rows(measure, world_size)
    reading = _read(criterion, rows)
    return CriterionResult(
        id=criterion.id,
        severity=_severity(criterion, reading.zone),
        outcome=reading.outcome,
        observed=reading.observed,
        threshold=thresholds(criterion),
        window=measure.window if measure else None,
        samples=min((row.samples for row in rows), default=0),
        evidence=reading.evidence,
    )


def is_unseen(
    criterion: Criterion,
    measure: Measure | None,
    world_size: int,
) -> bool:
    """Say whether a criterion is undecided for want of samples; see `evaluate`."""
    return _read(criterion, _rank_rows(measure, world_size)).zone is Zone.NOWHERE


def was_seen_failing(criterion: Criterion, measure: Measure | None, world_size: int) -> bool:
    """Say whether what was seen of a whole run does not pass; an advisory criterion never counts.

    The value lies on the fail side or between the thresholds, or is not finite.
    """
    reading = _read(criterion, _rank_rows(measure, world_size))
    seen = reading.outcome is not PASS and reading.zone is not Zone.NOWHERE
    missing = reading.outcome is FAIL and reading.zone is Zone.NOWHERE
    return (seen or missing) and criterion.severity is not GateSeverity.ADVISORY


def never_passes(criterion: Criterion, measure: Measure | None, rules: Rules) -> bool:
    """Say whether a criterion does not pass whatever the missing samples are.

    It fails already, or is in its grey zone at best, or has a sample that is not finite.
    """
    if measure is None:
        return False
    ranks = {name: narrowed(criterion, row) for name, row in measure.ranks.items()}
    seen = measure.model_copy(update={"ranks": ranks})
    at_best = criterion.model_copy(update={"fail_above": None, "fail_below": None})
    return any(_certain(row, seen, rules) is not None for row in (criterion, at_best))


def _certain(criterion: Criterion, measure: Measure | None, rules: Rules) -> Reading | None:
    """Return what is certain of a criterion before its run has come to its end; None: nothing."""
    row = metric_row(criterion.metric)
    advisory = criterion.severity is GateSeverity.ADVISORY
    if row is None or advisory or (row.owed is Owed.ONCE and row.early is Early.NOTHING):
        return None
    rows = _rank_rows(measure, rules.world_size or 0)
    if row.early is Early.AT_LEAST:
        rows = [one.model_copy(update={"high": math.inf}) for one in rows]
    if row.averaged and any(2 * one.samples < one.owed for one in rows):
        return None
    if row.owed is Owed.EVERY_EVAL and not rules.evals(rules.window(criterion)):
        rows = [open_ended(criterion.aggregate, one) for one in rows]
    return _already(criterion, rows)


def _severity(criterion: Criterion, zone: Zone) -> GateSeverity:
    """`grey: conditional` makes a required criterion a condition while its value is grey."""
    required = criterion.severity is GateSeverity.REQUIRED
    if zone is Zone.GREY and criterion.grey is Grey.CONDITIONAL and required:
        return GateSeverity.CONDITIONAL
    return criterion.severity


def thresholds(criterion: Criterion) -> dict[str, float] | None:
    """Return the thresholds that a criterion sets."""
    names = ("pass_above", "pass_below", "fail_above", "fail_below")
    said = {name: getattr(criterion, name) for name in names}
    return {name: value for name, value in said.items() if value is not None} or None


def _rank_rows(measure: Measure | None, world_size: int) -> list[MeasureRow]:
    ranks = measure.ranks if measure else {}
    return [ranks.get(str(rank), MeasureRow()) for rank in range(world_size)]


def _read(criterion: Criterion, rows: list[MeasureRow]) -> Reading:
    if metric_row(criterion.metric) is None:
        text = absent_text(criterion.metric)
        return Reading(outcome=INCONCLUSIVE, observed=None, evidence=text, zone=Zone.NOWHERE)
    what = f"{criterion.aggregate.value} of {criterion.metric}"
    if "profile" in (criterion.pass_above, criterion.pass_below):
        text = f"{what}: it must reach the profile's floor, and the order does not say what that is"
        return Reading(outcome=INCONCLUSIVE, observed=None, evidence=text)
    already = _already(criterion, rows)
    if already is not None:
        return already
    known = _known(criterion, rows)
    short = _shortfall(criterion, rows)
    value = _value(criterion, known)
    if short is not None:
        text, zone = f"{what}: {short[1]}", Zone.NOWHERE
        told = _told_in_part(criterion, value, what)
        if told is not None:
            text, zone = f"{text}; what was told does not pass: {told}", Zone.CLEAR
        return Reading(outcome=short[0], observed=value, evidence=text, zone=zone)
    if any(row is UNKNOWN for row in known):
        text = f"{what}: one sample says nothing of it"
        return Reading(outcome=INCONCLUSIVE, observed=None, evidence=text, zone=Zone.NOWHERE)
    return _weigh(criterion, value, what)


def _already(criterion: Criterion, rows: list[MeasureRow]) -> Reading | None:
    """Return what is certain whatever the missing samples were; None where nothing is."""
    what = f"{criterion.aggregate.value} of {criterion.metric}"
    bad = sum(row.non_finite for row in rows)
    if bad:
        fails = criterion.aggregate is Aggregate.ALL_FINITE or criterion.on_nan == "fail"
        text = f"{what}: {bad} samples are not finite"
        return Reading(outcome=FAIL if fails else ERROR, observed=None, evidence=text)
    known = _known(criterion, rows)
    low = _over_ranks(criterion, [row.low for row in known])
    high = _over_ranks(criterion, [row.high for row in known])
    if not rows or not _must_fail(criterion, low, high):
        return None
    text = _failing(criterion, low, high, what)
    return Reading(outcome=FAIL, observed=_shown(low, high), evidence=text)


def _known(criterion: Criterion, rows: list[MeasureRow]) -> list[MeasureRow]:
    """Return what is known of the ranks: of a slope or a spread, one sample says nothing."""
    needs_two = is_of_several(criterion)
    return [UNKNOWN if needs_two and row.samples == 1 else row for row in rows]


def _told_in_part(criterion: Criterion, value: float | None, what: str) -> str | None:
    """Return why too few samples would not pass as they are; None where they would, or say nothing.

    Their number alone says only how few they are.
    """
    if value is None or criterion.aggregate is Aggregate.COUNT:
        return None
    reading = _weigh(criterion, value, what)
    return None if reading.outcome is PASS else reading.evidence


def _weigh(criterion: Criterion, value: float | None, what: str) -> Reading:
    """Return what enough samples say; what they come to may still be no number."""
    if value is not None and not math.isfinite(value):
        text = f"{what}: of the numbers of some rank it is none that a double holds"
        return Reading(outcome=INCONCLUSIVE, observed=None, evidence=text)
    if criterion.aggregate is Aggregate.ALL_FINITE:
        text = f"{what}: every sample is finite"
        return Reading(outcome=PASS, observed=value, evidence=text)
    if value is None:  # facts that were edited, or the slope of a training of one sample
        text = f"{what}: samples of some rank are there, and no value of them"
        return Reading(outcome=INCONCLUSIVE, observed=None, evidence=text)
    return _compare(criterion, value, what)


def _failing(criterion: Criterion, low: float, high: float, what: str) -> str:
    """Say what fails: the value, or the bound that no missing sample moves, and what was asked."""
    floor, ceiling = _fail_bounds(criterion)
    if floor is not None:
        bound, at, sign, asked = high, "at most", "≥", _number(criterion.pass_above)
    else:
        bound, at, sign, asked = low, "at least", "≤", _number(criterion.pass_below)
    limit = floor if floor is not None else ceiling
    asked = limit if asked is None else asked
    if low == high:
        return f"{what} is {bound:g}; {sign} {asked:g} was asked"
    return f"{what} is {at} {bound:g} whatever is missing; {sign} {asked:g} was asked"


def _shown(low: float, high: float) -> float | None:
    """Return the finite end of the bounds, which is what was seen."""
    return next((rounded(end) for end in (low, high) if abs(end) != float("inf")), None)


def _value(criterion: Criterion, rows: list[MeasureRow]) -> float | None:
    values = [row.value for row in rows]
    if not values or any(value is None for value in values):
        return None
    return rounded(_over_ranks(criterion, [value for value in values if value is not None]))


def _over_ranks(criterion: Criterion, values: list[float]) -> float:
    if not values or any(map(math.isnan, values)):
        return float("nan")  # what is unknown of one rank is so of all
    if criterion.over_ranks == "min":
        return min(values)
    if criterion.over_ranks == "max":
        return max(values)
    total = added(sorted(values))
    return total / len(values) if criterion.over_ranks == "mean" else total


def _must_fail(criterion: Criterion, low: float, high: float) -> bool:
    """Say whether every value between the bounds lies beyond the fail threshold."""
    floor, ceiling = _fail_bounds(criterion)
    if floor is not None:
        return high < floor
    return ceiling is not None and low > ceiling


def _fail_bounds(criterion: Criterion) -> tuple[float | None, float | None]:
    """Return below and above which a value fails; one threshold alone is both."""
    above, below = criterion.pass_above, criterion.pass_below
    floor = criterion.fail_below if criterion.fail_below is not None else _number(above)
    ceiling = criterion.fail_above if criterion.fail_above is not None else _number(below)
    return floor, ceiling


def _number(bound: object) -> float | None:
    """Return a threshold; `profile` was filled in or left out when the order was made."""
    return float(bound) if isinstance(bound, int | float) else None


def _shortfall(criterion: Criterion, rows: list[MeasureRow]) -> tuple[CriterionOutcome, str] | None:
    """Return what missing samples mean, or None when there are enough."""
    empty = [str(rank) for rank, row in enumerate(rows) if row.samples == 0]
    if empty or not rows:
        where = f"rank {', '.join(empty)}" if empty else "any rank"
        return CriterionOutcome(criterion.on_missing), f"no samples of {where}"
    fewest = min(row.samples for row in rows)
    if fewest < criterion.min_samples:
        return INCONCLUSIVE, f"{fewest} samples, {criterion.min_samples} are needed"
    share = min(row.samples / max(1, row.owed) for row in rows)
    needed = needed_share(criterion)
    if share < needed:
        return INCONCLUSIVE, f"{share:.1%} of the samples are there, {needed:.0%} are needed"
    return None


def _compare(criterion: Criterion, value: float, what: str) -> Reading:
    floor, ceiling = _fail_bounds(criterion)
    if floor is not None:
        pass_at = _number(criterion.pass_above)
        passes = value >= (floor if pass_at is None else pass_at)
        fails, sign = value < floor, "≥"
    else:
        pass_at = _number(criterion.pass_below)
        passes = value <= (ceiling if pass_at is None else pass_at)  # type: ignore[operator]  # a plan has one side or the other
        fails, sign = value > ceiling, "≤"  # type: ignore[operator]  # same
    limit = floor if floor is not None else ceiling
    shown = limit if pass_at is None else pass_at
    if passes:
        text = f"{what} is {value:g}, {sign} {shown:g}"
        return Reading(outcome=PASS, observed=value, evidence=text)
    if fails:
        text = f"{what} is {value:g}; {sign} {shown:g} was asked"
        return Reading(outcome=FAIL, observed=value, evidence=text)
    text = f"in the grey zone: {what} is {value:g}, between {limit:g} and {shown:g}"
    return Reading(outcome=INCONCLUSIVE, observed=value, evidence=text, zone=Zone.GREY)
