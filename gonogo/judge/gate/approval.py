"""Was an approval given in time? What a person is asked to do is a condition, judged by a clock.

It is open while it is awaited, met by a person's word, and missed once nobody gave it within the
plan's `approve_expires_s`: silence is no consent. Pure: when it was asked and what the clock says
now go in, so that what was recorded is judged again.
"""

from typing import Any

from pydantic import Field

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import Condition, ConditionState, CriterionOutcome, CriterionResult
from gonogo.contract.wire import Recorded

APPROVAL = "approval"
"""What stands for the criterion of such a condition."""


class ApprovalRule(Recorded):
    """For how long it is waited for a person."""

    expires_s: float | None = Field(default=None, gt=0)
    """Seconds; null: for ever."""


class ApprovalMeasure(Recorded):
    """What the clock of the control plane said, Unix seconds."""

    asked_at: float
    at: float
    """When it was given, or found to have expired."""

    @property
    def waited_s(self) -> float:
        """Seconds since it was asked for; never negative, whatever a clock was set to."""
        return max(0.0, round(self.at - self.asked_at, 3))


def is_approval(condition: Condition) -> bool:
    """Say whether a condition is a person's approval."""
    return condition.criterion == APPROVAL and "/" in condition.id


def approval_condition(phase: str, following: str) -> Condition:
    """Return the open condition that a person approves `following` after `phase`.

    Its id has a sign that no criterion's name has, so that it is nobody else's.
    """
    return Condition(
        id=f"{phase}:{APPROVAL}/{following}",
        text=f"a person approves {following} after {phase}",
        criterion=APPROVAL,
        due=following,
        on_miss="inconclusive",
    )


def settled_approval(condition: Condition, state: ConditionState) -> Condition:
    """Return an approval that was given (met), expired (missed) or answered otherwise (waived)."""
    return condition.model_copy(update={"state": state})


def has_expired(rule: ApprovalRule, measure: ApprovalMeasure) -> bool:
    """Say whether an approval can be given no more."""
    return rule.expires_s is not None and measure.waited_s >= rule.expires_s


def evaluate_approval(
    condition: Condition, rule: ApprovalRule, measure: ApprovalMeasure
) -> CriterionResult:
    """Return what the clock says of an approval: pass while it can be given, fail once expired."""
    expired = has_expired(rule, measure)
    limit = "for ever" if rule.expires_s is None else f"for {rule.expires_s:g} s"
    text = f"it was waited for {limit}; {measure.waited_s:g} s went by"
    return CriterionResult(
        id=condition.id,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL if expired else CriterionOutcome.PASS,
        observed=measure.waited_s,
        threshold=rule.expires_s,
        evidence=f"{condition.text}: {text}",
    )


def recorded_rules(condition: Condition, rule: ApprovalRule) -> dict[str, Any]:
    """Return what a decision about an approval holds as its rules."""
    return {"approvals": {condition.id: rule.model_dump(mode="json")}}


def recorded_facts(condition: Condition, measure: ApprovalMeasure) -> dict[str, Any]:
    """Return what a decision about an approval holds as its facts."""
    return {"approvals": {condition.id: measure.model_dump(mode="json")}}
