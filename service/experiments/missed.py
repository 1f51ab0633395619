"""Recording that conditions were due and had not been met.

The decision holds the result of each criterion over the last completed run of `evidence_from`. If
there is no such run, it says only that the conditions were due.
"""

from collections.abc import Sequence

from gonogo.contract.decision import Condition, CriterionOutcome, CriterionResult
from gonogo.contract.facts import Facts
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.rules import Rules
from gonogo.judge.gate.criteria import evaluate
from gonogo.ledger.recorded import RecordedDecision
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
    seen = [(condition, _load_measured(deed, experiment, condition)) for condition in conditions]
    results = [_unmet(condition, *found) for condition, found in seen if found is not None]
    return record_conditions(
        deed,
        experiment,
        conditions,
        phase=phase,
        criteria=[result for result in results if result is not None],
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
    """Return the result of the condition's criterion over the run; None if it passes."""
    rows = rules.criteria()
    if condition.id not in rows:
        return None
    measure = facts.measures[condition.id]
    result = evaluate(rows[condition.id], measure, rules.world_size or 0)
    return None if result.outcome is CriterionOutcome.PASS else result
