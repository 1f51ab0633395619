"""Turn criteria into outcomes: the built-in ones, those of the plan, and those that are added."""

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.rules import Rules
from gonogo.judge.gate.added import added_criteria, notes
from gonogo.judge.gate.built_in import (
    UNREPORTED,
    Check,
    Word,
    completed,
    coverage,
    no_halt_finding,
    preflight,
)
from gonogo.judge.gate.criteria import evaluate, is_unseen
from gonogo.judge.gate.identity import COVERAGE, IDENTITY, evaluate_drift, identity

BUILT_IN: dict[str, Check] = {
    "completed": completed,
    IDENTITY: identity,
    COVERAGE: coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}
_ORDER = list(Word)


def evaluate_gate(facts: Facts, rules: Rules) -> list[CriterionResult]:
    """Return what every criterion says: built-in, of the order, of the plan, of other runs."""
    drift = evaluate_drift(facts, rules)
    return [
        *(evaluate_built_in(name, facts, rules) for name in rules.built_in),
        *([] if drift is None else [drift]),
        *notes(facts, rules),
        *_of_the_plan(facts, rules),
        *added_criteria(facts, rules),
    ]


def evaluate_built_in(name: str, facts: Facts, rules: Rules) -> CriterionResult:
    """Return the worst word of a built-in criterion, the first of equals.

    A waiver excuses nothing but what a program did not report.
    """
    said = BUILT_IN[name](facts, rules)
    word, observed, evidence = min(said, key=lambda row: _ORDER.index(row[0]))
    waived = word is UNREPORTED and name in rules.waive and name not in NEVER_WAIVED
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL if waived else GateSeverity.REQUIRED,
        outcome=word.outcome,
        observed=observed,
        evidence=f"waived by name: {evidence}" if waived else evidence,
    )


def _of_the_plan(facts: Facts, rules: Rules) -> list[CriterionResult]:
    unseen = unseen_criteria(facts, rules)
    found = []
    for criterion in rules.gate:
        row = evaluate(criterion, facts.measures.get(criterion.id), rules.world_size or 0)
        if row.id in unseen and row.outcome is not CriterionOutcome.FAIL:
            text = f"waived by name: {row.evidence}"
            row = row.model_copy(update={"severity": GateSeverity.CONDITIONAL, "evidence": text})
        found.append(row)
    return found


def unseen_criteria(facts: Facts, rules: Rules) -> frozenset[str]:
    """Return the plan's criteria that may stay unobserved, and did.

    A waiver does not excuse what was seen: a value between the thresholds, or one that is not
    finite.
    """
    size = rules.world_size or 0
    return frozenset(
        row.id
        for row in rules.gate
        if row.id in rules.waive and is_unseen(row, facts.measures.get(row.id), size)
    )
