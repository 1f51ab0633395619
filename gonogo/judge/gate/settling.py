"""Which conditions of the judge's own can a later run meet, and by what?

An allowed drift is met by a run without drift; a failure that did not come again, by a run that
completes and goes further than the step at which it failed. Each has a criterion like a plan's
own, so that what settles it is recorded and evaluated again. Every other condition that the judge
makes (a remedy, a failure that only a variant avoided, a weakened watch) is a person's to waive.
"""

from collections.abc import Mapping
from typing import Any, Literal

from gonogo.contract.criterion import Aggregate, Criterion, GateSeverity, Metric
from gonogo.contract.decision import CriterionResult
from gonogo.contract.facts import FindingFacts, OutcomeFacts, halt_behind
from gonogo.judge.gate.built_in import DRIFT
from gonogo.judge.gate.history import REPRODUCED

SETTLED_BY_RUNS = (DRIFT, REPRODUCED)
"""What orders name since this rule is there (`settles`); runs ordered before keep theirs."""

ON_MISS: Literal["conditional_go"] = "conditional_go"
"""A plan allowed the drift, and the failure did not come again: neither is a NO_GO by itself."""


def can_be_met(result: CriterionResult) -> bool:
    """Say whether a later run can meet the condition that a criterion of the judge's own makes."""
    if result.id == REPRODUCED:
        seen = result.observed  # none where only the order says that a failure was confirmed
        return seen is not None and bool(seen["failed"] < seen["runs"])
    return result.id in SETTLED_BY_RUNS


def own_criterion(name: str, facts: Mapping[str, Any]) -> Criterion | None:
    """Return what must be seen so that a condition of the judge's own is met; None: a person must.

    Args:
        name: id of the criterion that made the condition.
        facts: as recorded in the decision that made it.
    """
    if name == DRIFT:
        return Criterion(
            id=DRIFT,
            metric=Metric.IDENTITY_DRIFT,
            aggregate=Aggregate.LAST,
            over_ranks="max",
            pass_below=0.0,
            severity=GateSeverity.CONDITIONAL,
            on_miss=ON_MISS,
        )
    if name == REPRODUCED:
        return Criterion(
            id=REPRODUCED,
            metric=Metric.STEPS_COMPLETED,
            aggregate=Aggregate.LAST,
            pass_above=float(_failed_step(facts) + 1),
            severity=GateSeverity.CONDITIONAL,
            on_miss=ON_MISS,
        )
    return None


def _failed_step(facts: Mapping[str, Any]) -> int:
    """Return the step of the failure; else of the finding that ended the run, else its furthest."""
    told = (facts.get("history") or {}).get("failed_step")
    if isinstance(told, int):
        return told
    findings = [FindingFacts.model_validate(row) for row in facts.get("findings", [])]
    said = facts.get("outcome")
    code = None if said is None else OutcomeFacts.model_validate(said).code
    halt = halt_behind(findings, code)
    if halt is not None and halt.step is not None:
        return halt.step
    return max((int(row["last_step"]) for row in facts.get("ranks", {}).values()), default=0)
