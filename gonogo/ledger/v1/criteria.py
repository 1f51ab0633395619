"""What did a plan's own criterion say under release 0.1?"""

from typing import Any

from gonogo.contract.canonical import added, rounded
from gonogo.ledger.v1.built_in import ERROR, FAIL, INCONCLUSIVE, PASS, result
from gonogo.ledger.v1.measure import needed_share
from gonogo.ledger.v1.rules import Criterion, Json

Rows = list[dict[str, Any]]
_GREY = "in the grey zone"


def evaluate(criterion: Criterion, measure: Json | None, world_size: int) -> dict[str, Any]:
    """Return what one criterion of a plan says."""
    rows = _rank_rows(measure, world_size)
    outcome, observed, evidence = _outcome(criterion, rows)
    severity: str = criterion.severity
    if outcome == INCONCLUSIVE and evidence.startswith(_GREY):
        severity = _grey_severity(criterion)
    return result(
        criterion.id,
        severity,
        outcome,
        observed,
        evidence,
        threshold=_thresholds(criterion),
        window=measure["window"] if measure else None,
        samples=min((row["samples"] for row in rows), default=0),
    )


def _grey_severity(criterion: Criterion) -> str:
    if criterion.grey == "conditional" and criterion.severity == "required":
        return "conditional"
    return criterion.severity


def _thresholds(criterion: Criterion) -> dict[str, Any] | None:
    names = ("pass_above", "pass_below", "fail_above", "fail_below")
    said = {name: getattr(criterion, name) for name in names}
    return {name: value for name, value in said.items() if value is not None} or None


def _rank_rows(measure: Json | None, world_size: int) -> Rows:
    ranks = measure["ranks"] if measure else {}
    nothing: dict[str, Any] = {"samples": 0, "owed": 1, "non_finite": 0, "value": None}
    nothing |= {"low": "-Infinity", "high": "Infinity"}
    return [dict(ranks.get(str(rank), nothing)) for rank in range(world_size)]


def _outcome(criterion: Criterion, rows: Rows) -> tuple[str, float | None, str]:
    what = f"{criterion.aggregate} of {criterion.metric}"
    bad = sum(row["non_finite"] for row in rows)
    if bad:
        fails = criterion.aggregate == "all_finite" or criterion.on_nan == "fail"
        return FAIL if fails else ERROR, None, f"{what}: {bad} samples are not finite"
    low = _over_ranks(criterion, [float(row["low"]) for row in rows])
    high = _over_ranks(criterion, [float(row["high"]) for row in rows])
    if rows and _must_fail(criterion, low, high):
        return FAIL, _shown(low, high), f"{what}: fails whatever the missing samples were"
    short = _shortfall(criterion, rows)
    value = _value(criterion, rows)
    if short is not None:
        return short[0], value, f"{what}: {short[1]}"
    if criterion.aggregate == "all_finite":
        return PASS, value, f"{what}: every sample is finite"
    return _compare(criterion, value, what)


def _shown(low: float, high: float) -> float | None:
    return next((rounded(end) for end in (low, high) if abs(end) != float("inf")), None)


def _value(criterion: Criterion, rows: Rows) -> float | None:
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
    total = added(sorted(values))
    return total / len(values) if criterion.over_ranks == "mean" else total


def _must_fail(criterion: Criterion, low: float, high: float) -> bool:
    floor, ceiling = _fail_bounds(criterion)
    if floor is not None:
        return high < floor
    return ceiling is not None and low > ceiling


def _fail_bounds(criterion: Criterion) -> tuple[float | None, float | None]:
    above, below = criterion.pass_above, criterion.pass_below
    floor = criterion.fail_below if criterion.fail_below is not None else _number(above)
    ceiling = criterion.fail_above if criterion.fail_above is not None else _number(below)
    return floor, ceiling


def _number(bound: object) -> float | None:
    return float(bound) if isinstance(bound, int | float) else None


def _shortfall(criterion: Criterion, rows: Rows) -> tuple[str, str] | None:
    empty = [str(rank) for rank, row in enumerate(rows) if row["samples"] == 0]
    if empty or not rows:
        where = f"rank {', '.join(empty)}" if empty else "any rank"
        return criterion.on_missing, f"no samples of {where}"
    fewest = min(row["samples"] for row in rows)
    if fewest < criterion.min_samples:
        return INCONCLUSIVE, f"{fewest} samples, {criterion.min_samples} are needed"
    share = min(row["samples"] / max(1, row["owed"]) for row in rows)
    needed = needed_share(criterion)
    if share < needed:
        return INCONCLUSIVE, f"{share:.1%} of the samples are there, {needed:.0%} are needed"
    return None


def _compare(criterion: Criterion, value: float | None, what: str) -> tuple[str, float | None, str]:
    floor, ceiling = _fail_bounds(criterion)
    limit = floor if floor is not None else ceiling
    if value is None or limit is None:
        return ERROR, value, f"{what}: the recorded measure or criterion is not whole"
    above = floor is not None
    pass_at = _number(criterion.pass_above if above else criterion.pass_below)
    shown = limit if pass_at is None else pass_at
    sign = "≥" if above else "≤"
    if value >= shown if above else value <= shown:
        return PASS, value, f"{what} is {value:g}, {sign} {shown:g}"
    if value < limit if above else value > limit:
        return FAIL, value, f"{what} is {value:g}; {sign} {shown:g} was asked"
    return INCONCLUSIVE, value, f"{_GREY}: {what} is {value:g}, between {limit:g} and {shown:g}"
