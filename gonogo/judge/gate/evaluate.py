"""One place that turns criteria into outcomes: built-in ones, a plan's own, and added ones."""

from collections.abc import Iterator

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.rules import Rules
from gonogo.judge.gate.added import added_criteria, notes
from gonogo.judge.gate.built_in import (
    UNTOLD,
    Check,
    Said,
    Word,
    completed,
    coverage,
    no_halt_finding,
    preflight,
)
from gonogo.judge.gate.criteria import evaluate, is_unseen
from gonogo.judge.gate.identity import COVERAGE, IDENTITY, evaluate_drift, identity
from gonogo.judge.gate.weakened import evaluate_ceilings

BUILT_IN: dict[str, Check] = {
    "completed": completed,
    IDENTITY: identity,
    COVERAGE: coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}


def evaluate_gate(facts: Facts, rules: Rules) -> list[CriterionResult]:
    """Return what every criterion says: built-in, added, then the plan's own in their order."""
    results = [evaluate_built_in(name, facts, rules) for name in rules.built_in]
    conditional = (evaluate_drift(facts, rules), evaluate_ceilings(rules))
    results += [row for row in conditional if row is not None]
    results += notes(facts, rules)
    unseen = unseen_criteria(facts, rules)
    for criterion in rules.gate:
        measure = facts.measures.get(criterion.id)
        result = evaluate(criterion, measure, rules.world_size or 0)
        results.append(_waived(result) if result.id in unseen else result)
    return [*results, *added_criteria(facts, rules)]


def evaluate_built_in(name: str, facts: Facts, rules: Rules) -> CriterionResult:
    """Return what one built-in criterion says, whatever order.json claims to waive."""
    word, observed, evidence = _worst(BUILT_IN[name](facts, rules))
    waived = word is UNTOLD and name in rules.waive and name not in NEVER_WAIVED
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL if waived else GateSeverity.REQUIRED,
        outcome=word.outcome,
        observed=observed,
        evidence=f"waived by name: {evidence}" if waived else evidence,
    )


def _worst(said: Iterator[Said]) -> Said:
    """Return the worst word, the first of equals."""
    order = list(Word)
    return min(said, key=lambda row: order.index(row[0]))


def unseen_criteria(facts: Facts, rules: Rules) -> frozenset[str]:
    """Return the plan's criteria that may stay unobserved, and did.

    A waiver does not excuse what was seen: a value between the thresholds, or one that is not
    finite.
    """
    return frozenset(
        row.id
        for row in rules.gate
        if row.id in rules.waive
        and is_unseen(row, facts.measures.get(row.id), rules.world_size or 0)
    )


def _waived(row: CriterionResult) -> CriterionResult:
    """Return a criterion that may stay unobserved as a condition."""
    if row.outcome in (CriterionOutcome.PASS, CriterionOutcome.FAIL):
        return row
    told = {"severity": GateSeverity.CONDITIONAL, "evidence": f"waived by name: {row.evidence}"}
    return row.model_copy(update=told)
