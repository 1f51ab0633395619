"""How does an approval end? Given by a person, or expired by the clock; recorded either way.

An approval is a condition (`gonogo.judge.gate.conditions`). The decision about it holds how long
the plan waits and what the clock said.
"""

from gonogo.contract.decision import ConditionState
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.course.decide import decide_expiry
from gonogo.judge.gate.conditions import in_state, is_approval
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import SERVICE_ACTOR
from service.db.schema import ExperimentRow
from service.experiments.consequences import act
from service.experiments.course import resolved_of
from service.experiments.decisions import load_conditions, record_conditions
from service.experiments.lifecycle import Deed, lock_experiment, record_event
from service.experiments.standing import clock_of, open_approval


def record_approval(
    deed: Deed,
    experiment: ExperimentRow,
    state: ConditionState,
    *,
    reason: str | None,
) -> RecordedDecision | None:
    """Record that the awaited approval was given (met) or expired (missed).

    None where none is awaited.
    """
    asked = open_approval(experiment)
    if asked is None or experiment.awaiting is None:
        return None
    return record_conditions(
        deed,
        experiment,
        [in_state(asked, state)],
        phase=experiment.awaiting.phase,
        actor=deed.actor if state is ConditionState.MET else SERVICE_ACTOR,
        reason=reason,
    )


def expire(deed: Deed, experiment_id: str) -> RecordedDecision | None:
    """Let an approval expire that nobody gave in time; None where it can still be given."""
    experiment = lock_experiment(deed, experiment_id)
    awaited = experiment.awaiting
    waits = experiment.state == ExperimentState.AWAITING_DECISION
    if not waits or awaited is None or open_approval(experiment) is None:
        return None
    phase = awaited.phase
    action = decide_expiry(resolved_of(experiment).parsed(), phase, *clock_of(awaited, deed.now))
    if action is None:
        return None
    recorded = record_approval(deed, experiment, ConditionState.MISSED, reason=action.text)
    record_event(deed, experiment, "approval.expired", phase=phase, text=action.text)
    act(deed, experiment, phase, action, {}, None)
    return recorded


def waive_expired(deed: Deed, experiment: ExperimentRow, phase: str, *, reason: str) -> None:
    """Let a person's GO stand in for the approval of a phase that had expired."""
    late = [
        in_state(row.condition, ConditionState.WAIVED)
        for row in load_conditions(deed.session, experiment.id)
        if row.condition.id.startswith(f"{phase}:")
        and is_approval(row.condition)
        and row.condition.state is ConditionState.MISSED
    ]
    if late:
        record_conditions(deed, experiment, late, phase=phase, actor=deed.actor, reason=reason)
