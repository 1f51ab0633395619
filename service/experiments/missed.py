"""How is it recorded that conditions were due and had not been met? With what measured them.

The last completed run of `evidence_from` that counts saw them; its criterion and measure go into
the decision, so that it can be evaluated again. Where no such run was, the decision holds none, and
says no more than that they were due.
"""

from collections.abc import Sequence
from typing import Any

from gonogo.contract.decision import Condition, CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.rules import Rules
from gonogo.judge.gate.criteria import evaluate
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import facts_of, rules_of
from service.db.schema import AssessmentRow, ExperimentRow
from service.experiments.decisions import record_conditions
from service.experiments.lifecycle import Deed
from service.queries.runs import load_attempts


def record_missed(
    deed: Deed, experiment: ExperimentRow, conditions: Sequence[Condition], *, phase: str
) -> RecordedDecision:
    """Record conditions as missed.

    Args:
        deed: the transaction.
        experiment: locked.
        conditions: in their new state.
        phase: the one that was judged when they were due.
    """
    criteria: dict[str, Any] = {}
    measures: dict[str, Any] = {}
    results: list[CriterionResult] = []
    world_size = None
    for condition in conditions:
        seen = _load_measured(deed, experiment, condition)
        result = None if seen is None else _unmet(condition, *seen)
        if seen is None or result is None:
            continue
        rules, facts = rules_of([condition], seen[0]), facts_of([condition], seen[1])
        world_size = rules["world_size"]
        criteria |= rules["criteria"]
        measures |= facts["measures"]
        results.append(result)
    return record_conditions(
        deed,
        experiment,
        conditions,
        phase=phase,
        criteria=results,
        rules={"world_size": world_size, "criteria": criteria} if results else None,
        facts={"measures": measures} if results else None,
        reason="missed: " + ", ".join(condition.id for condition in conditions),
    )


def _load_measured(
    deed: Deed, experiment: ExperimentRow, condition: Condition
) -> tuple[Rules, Facts] | None:
    """Return rules and facts of the last completed run that measured a condition, if any did."""
    if condition.evidence_from is None:
        return None
    runs = load_attempts(deed.session, experiment.id, condition.evidence_from)
    for run in reversed(runs):
        if run.outcome.klass is not OutcomeClass.SUCCESS:
            continue
        row = deed.session.get_one(AssessmentRow, run.run)
        facts = Facts.model_validate_json(row.facts)
        if condition.id in facts.measures:
            return Rules.model_validate_json(row.rules), facts
    return None


def _unmet(condition: Condition, rules: Rules, facts: Facts) -> CriterionResult | None:
    """Return what the condition's criterion says of the run; None where it does not say unmet."""
    rows = {row.condition.id: row.criterion for row in rules.conditions}
    if condition.id not in rows:
        return None
    measure = facts.measures[condition.id]
    result = evaluate(rows[condition.id], measure, rules.world_size or 0)
    return None if result.outcome is CriterionOutcome.PASS else result
