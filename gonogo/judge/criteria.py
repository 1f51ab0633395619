"""What does each criterion say about the facts? Pass, fail, inconclusive or error, never a guess.

A plan's own criteria, evaluated from what was measured: certain failure first, then what is
missing, then the thresholds. The built-in ones are in `built_in`.
"""

from collections.abc import Mapping
from typing import Any

from gonogo.contract.canonical import rounded
from gonogo.contract.criterion import Aggregate, Criterion, GateSeverity, Grey
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.judge.measure import needed_share

Json = Mapping[str, Any]

PASS, FAIL = CriterionOutcome.PASS, CriterionOutcome.FAIL
INCONCLUSIVE, ERROR = CriterionOutcome.INCONCLUSIVE, CriterionOutcome.ERROR


def evaluate(criterion: Criterion, measure: Json | None, world_size: int) -> CriterionResult:
    """Return what one criterion of a plan says.

    Args:
        criterion: thresholds already filled from the profile.
        measure: what `build_measure` saw; None when nothing could be measured.
        world_size: number of ranks that must have been seen.
    """
    rows = _rank_rows(measure, world_size)
    outcome, observed, evidence = _outcome(criterion, rows)
    severity = criterion.severity
    if outcome is INCONCLUSIVE and evidence.startswith(_GREY):
        severity = _grey_severity(criterion)
    return CriterionResult(
        id=criterion.id,
        severity=severity,
        outcome=outcome,
        observed=observed,
        threshold=thresholds(criterion),
        window=measure["window"] if measure else None,
        samples=min((row["samples"] for row in rows), default=0),
        evidence=evidence,
    )


_GREY = "in the grey zone"


def _grey_severity(criterion: Criterion) -> GateSeverity:
    """`grey: conditional` makes a required criterion a condition while its value is grey."""
    if criterion.grey is Grey.CONDITIONAL and criterion.severity is GateSeverity.REQUIRED:
        return GateSeverity.CONDITIONAL
    return criterion.severity


def thresholds(criterion: Criterion) -> dict[str, float] | None:
    """Return the thresholds that a criterion sets."""
    names = ("pass_above", "pass_below", "fail_above", "fail_below")
    said = {name: getattr(criterion, name) for name in names}
    return {name: value for name, value in said.items() if value is not None} or None


_NOTHING = {"samples": 0, "owed": 1, "non_finite": 0, "value": None}


def _rank_rows(measure: Json | None, world_size: int) -> list[dict[str, Any]]:
    ranks = measure["ranks"] if measure else {}
    nothing = {**_NOTHING, "low": "-Infinity", "high": "Infinity"}
    return [dict(ranks.get(str(rank), nothing)) for rank in range(world_size)]


def _outcome(
    criterion: Criterion, rows: list[dict[str, Any]]
) -> tuple[CriterionOutcome, float | None, str]:
    what = f"{criterion.aggregate.value} of {criterion.metric.value}"
    bad = sum(row["non_finite"] for row in rows)
    if bad:
        fails = criterion.aggregate is Aggregate.ALL_FINITE or criterion.on_nan == "fail"
        return FAIL if fails else ERROR, None, f"{what}: {bad} samples are not finite"
    low = _over_ranks(criterion, [float(row["low"]) for row in rows])
    high = _over_ranks(criterion, [float(row["high"]) for row in rows])
    if rows and _must_fail(criterion, low, high):
        return FAIL, _shown(low, high), f"{what}: fails whatever the missing samples were"
    short = _shortfall(criterion, rows)
    value = _value(criterion, rows)
    if short is not None:
        return short[0], value, f"{what}: {short[1]}"
    if criterion.aggregate is Aggregate.ALL_FINITE:
        return PASS, value, f"{what}: every sample is finite"
    assert value is not None  # no shortfall: every rank has a value
    return _compare(criterion, value, what)


def _shown(low: float, high: float) -> float | None:
    """Return the finite end of the bounds, which is what was seen."""
    return next((rounded(end) for end in (low, high) if abs(end) != float("inf")), None)


def _value(criterion: Criterion, rows: list[dict[str, Any]]) -> float | None:
    values = [row["value"] for row in rows]
    if not values or any(value is None for value in values):
        return None
    return rounded(_over_ranks(criterion, [float(value) for value in values]))


def _over_ranks(criterion: Criterion, values: list[float]) -> float:
    if not values:
        return float("nan")
    if criterion.over_ranks == "min":
        return min(values)
    if criterion.over_ranks == "max":
        return max(values)
    total = sum(sorted(values))
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


def _shortfall(
    criterion: Criterion, rows: list[dict[str, Any]]
) -> tuple[CriterionOutcome, str] | None:
    """Return what missing samples mean, or None when there are enough."""
    empty = [str(rank) for rank, row in enumerate(rows) if row["samples"] == 0]
    if empty or not rows:
        where = f"rank {', '.join(empty)}" if empty else "any rank"
        return CriterionOutcome(criterion.on_missing), f"no samples of {where}"
    fewest = min(row["samples"] for row in rows)
    if fewest < criterion.min_samples:
        return INCONCLUSIVE, f"{fewest} samples, {criterion.min_samples} are needed"
    share = min(row["samples"] / max(1, row["owed"]) for row in rows)
    needed = needed_share(criterion)
    if share < needed:
        return INCONCLUSIVE, f"{share:.1%} of the samples are there, {needed:.0%} are needed"
    return None


def _compare(criterion: Criterion, value: float, what: str) -> tuple[CriterionOutcome, float, str]:
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
        return PASS, value, f"{what} is {value:g}, {sign} {shown:g}"
    if fails:
        return FAIL, value, f"{what} is {value:g}; {sign} {shown:g} was asked"
    return INCONCLUSIVE, value, f"{_GREY}: {what} is {value:g}, between {limit:g} and {shown:g}"
