"""Criteria that the judge adds to a gate, because of other runs or of what an order allows.

Each of them is conditional or advisory: other runs make a verdict worse, never better.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gonogo.contract.canonical import canonical_bytes, wire_value
from gonogo.contract.criterion import Aggregate, Criterion, GateSeverity, Metric
from gonogo.contract.decision import PASSING, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.facts import Confirmation, Facts, FailedBefore, History, Remedy
from gonogo.contract.finding import Severity
from gonogo.contract.order import CarriedRemedy, RunReason
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules
from gonogo.contract.taint import Taint

REPRODUCED = "reproduced"
REMEDIED = "remedied"
CARRIED = "remedy_carried"
UNPASSED = "unpassed"
FAILED_BEFORE = "failed_before"
MADE_UP = "made_up"
"""Id of the note about faults and scripted devices that the order allows."""
BEYOND_PEAK = "beyond_peak"
"""Id of the note about a speed above what the devices can multiply."""

FAIL, INCONCLUSIVE = CriterionOutcome.FAIL, CriterionOutcome.INCONCLUSIVE


def with_history(facts: Facts, history: History | None) -> Facts:
    """Return the facts of a run with those of the phase's other runs beside them.

    The history is read back from its canonical text, as a replay reads it.
    """
    if history is None:
        return facts
    text = canonical_bytes(wire_value(history.model_dump(mode="json", exclude_unset=True)))
    return facts.model_copy(update={"history": History.model_validate_json(text)})


def added_criteria(facts: Facts, rules: Rules) -> Iterator[CriterionResult]:
    """Yield what other runs add to the gate of a run."""
    history = facts.history or History()
    if rules.carried:
        yield _carried(rules.carried)
    if rules.taints:
        yield _tainted(rules.taints)
    if history.confirmations or rules.reason is RunReason.CONFIRM:
        yield _reproduced(history.confirmations)
    if history.remedy is not None or rules.reason is RunReason.REMEDY:
        yield _remedied(history.remedy)
    if history.failed_before:
        yield _failed_before(history.failed_before)


def _reproduced(rows: Sequence[Confirmation]) -> CriterionResult:
    """Return how often a failure came again: unchanged, and under each variant."""
    if not rows:
        text = "this run was made to confirm a failure that order.json does not name"
        return _conditional(REPRODUCED, FAIL, None, text)
    unchanged = [row for row in rows if row.variant is None]
    failed = sum(row.verdict is Verdict.NO_GO for row in unchanged)
    passed = sum(row.verdict in PASSING for row in unchanged)
    text = f"failed in {failed} of {len(unchanged)} unchanged runs"
    text = f"not reproduced: {text}" if passed else text
    variants: dict[str, list[bool]] = {}
    for row in rows:
        if row.variant is not None:
            variants.setdefault(row.variant.text(), []).append(row.verdict in PASSING)
    told = [f"passed {sum(won)} of {len(won)} with {name}" for name, won in variants.items()]
    outcome = FAIL if passed or any(map(any, variants.values())) else INCONCLUSIVE
    observed = {"failed": failed, "runs": len(unchanged), "passed": passed}
    return _conditional(REPRODUCED, outcome, observed, "; ".join([text, *told]))


def _remedied(remedy: Remedy | None) -> CriterionResult:
    if remedy is None:
        text = "this run was made with the remedy of a failure that order.json does not name"
        return _conditional(REMEDIED, FAIL, None, text)
    text = f"this run was made with the remedy of {remedy.diagnosis}: {remedy.patch}"
    return _conditional(REMEDIED, FAIL, remedy.patch, text)


def _failed_before(rows: Sequence[FailedBefore]) -> CriterionResult:
    told = "; ".join(f"{row.run} ({row.code}): {', '.join(row.criteria)}" for row in rows)
    text = f"earlier runs of the phase failed criteria, and this run does not undo it ({told})"
    return _conditional(FAILED_BEFORE, FAIL, [row.run for row in rows], text)


def _carried(rows: Sequence[CarriedRemedy]) -> CriterionResult:
    text = f"carried on: {'; '.join(row.told() for row in rows)}"
    return _conditional(CARRIED, FAIL, [row.diagnosis for row in rows], text)


def _tainted(taints: Sequence[Taint]) -> CriterionResult:
    """Return the condition of the taints: the gate sees the steps after the checkpoint alone."""
    text = f"it resumes from a checkpoint: {'; '.join(taint.words() for taint in taints)}"
    return _conditional(UNPASSED, FAIL, [taint.found for taint in taints], text)


def _conditional(
    name: str, outcome: CriterionOutcome, observed: Any, evidence: str
) -> CriterionResult:
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL,
        outcome=outcome,
        observed=observed,
        evidence=evidence,
    )


# ---- the one condition of these that a later run can meet ---------------------------------------

ON_MISS: Literal["conditional_go"] = "conditional_go"
"""A failure that did not come again is no NO_GO by itself."""


def can_be_met(result: CriterionResult) -> bool:
    """Say whether a later run can meet a condition of the judge's own.

    That is a failure that did not come again in an unchanged run. All others are waived by a
    person.
    """
    seen = result.observed if result.id == REPRODUCED else None
    return isinstance(seen, dict) and bool(seen["passed"])


def own_criterion(name: str, facts: Mapping[str, Any]) -> Criterion | None:
    """Return what meets a condition of the judge's own: a run that goes beyond the failed step.

    Args:
        name: id of the criterion that made the condition.
        facts: as recorded in the decision that made it.
    """
    rows = (facts.get("history") or {}).get("confirmations") or []
    if name != REPRODUCED or not rows:
        return None
    return Criterion(
        id=REPRODUCED,
        metric=Metric.STEPS_COMPLETED,
        aggregate=Aggregate.LAST,
        pass_above=float((rows[0].get("step") or 0) + 1),
        severity=GateSeverity.CONDITIONAL,
        on_miss=ON_MISS,
    )


# ---- notes, which change no verdict -------------------------------------------------------------


def notes(facts: Facts, rules: Rules) -> Iterator[CriterionResult]:
    """Yield the notes beside a verdict, as advisory criteria."""
    if rules.allow_faults or rules.fault is not None:
        text = "the order allows faults to be injected on purpose; it names none"
        if rules.fault is not None:
            text = f"fault {rules.fault} was injected on purpose"
        if facts.devices is not None:
            text += "; the device samples may come from a script, not from devices"
        yield _note(MADE_UP, rules.fault, None, text)
    speeds = list(_beyond_peak(facts))
    if speeds:
        tok_s, limit = max(speeds)
        text = (
            f"{tok_s:.4g} tokens/s are more than the devices can multiply ({limit:.4g}) if each"
            " token meets every parameter; the trainer alone knows whether each token does"
        )
        yield _note(BEYOND_PEAK, tok_s, limit, text)


def _beyond_peak(facts: Facts) -> Iterator[tuple[float, float]]:
    for row in facts.findings:
        warns = row.detector == Detector.IMPLAUSIBLE_SPEED and row.severity is Severity.WARN
        value, limit = row.value, row.threshold
        if warns and value is not None and limit is not None and value > limit:
            yield value, limit


def _note(
    name: str, observed: str | float | None, threshold: float | None, text: str
) -> CriterionResult:
    return CriterionResult(
        id=name,
        severity=GateSeverity.ADVISORY,
        outcome=INCONCLUSIVE,
        observed=observed,
        threshold=threshold,
        evidence=text,
    )
