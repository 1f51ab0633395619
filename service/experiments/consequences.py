"""Doing the next action: `gonogo.judge.follow_up.decide` says what, this does it.

An operator's stop outranks the next action: `halt` lets nothing start before a person says so,
`cancel` finishes. Approvals and due conditions are settled here too.
"""

from collections.abc import Sequence

from gonogo.contract.api import AlertType
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Verdict,
)
from gonogo.contract.errors import Conflict
from gonogo.contract.facts import Facts
from gonogo.contract.lifecycle import ExperimentState, PhaseEvent, PhaseState
from gonogo.contract.order import ResumePoint, RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.rules import Rules
from gonogo.judge.follow_up.action import Action, ActionKind
from gonogo.judge.follow_up.decide import decide_expiry
from gonogo.judge.gate.conditions import in_state, is_approval
from gonogo.judge.gate.criteria import evaluate
from gonogo.ledger.seal import SERVICE_ACTOR
from service.db.columns import Awaited, AwaitedKind, StopKind
from service.db.schema import AssessmentRow, ExperimentRow, PhaseRow
from service.experiments.advance import (
    await_person,
    continue_experiment,
    finish,
    queue_run,
    resolved_of,
    start_phase,
)
from service.experiments.awaited import clock_of, open_approval
from service.experiments.decisions import load_conditions, record_conditions, total_verdict
from service.experiments.lifecycle import (
    Deed,
    approval_text,
    lock_experiment,
    move_phase,
    queue_alert,
    record_event,
)
from service.queries.experiments import phases_of
from service.queries.runs import load_attempts

_STARTS = (ActionKind.START_PHASE, ActionKind.START_RUN)


def act(
    deed: Deed,
    experiment: ExperimentRow,
    phase: str,
    action: Action,
    resume: dict[str, ResumePoint],
    outcome: Outcome | None,
) -> None:
    """Do what comes after a verdict on a phase."""
    rows = {row.name: row for row in phases_of(deed.session, experiment.id)}
    _settle_phase(deed, experiment, rows[phase], action.verdict)
    if action.missed:
        _record_missed(deed, experiment, action.missed, phase)
    stop = experiment.stop.kind if experiment.stop is not None else None
    if stop is StopKind.CANCEL:
        cancel_now(deed, experiment)
    elif stop is StopKind.HALT and action.kind in _STARTS:
        _await(deed, experiment, action, phase, f"halted; {action.text}")
    elif action.kind in _STARTS:
        if experiment.state == ExperimentState.AWAITING_DECISION:
            continue_experiment(deed, experiment)
        if action.kind is ActionKind.START_PHASE and action.phase is not None:
            start_phase(deed, experiment, rows[action.phase], resume.get(action.phase))
        else:
            _queue(deed, experiment, phase, action, resume.get(phase))
    elif action.kind is ActionKind.FINISH:
        cancelled = outcome is not None and outcome.code is OutcomeCode.CANCELLED
        unjudged = cancelled and action.verdict is None
        verdict = None if unjudged else total_verdict(deed.session, experiment)
        finish(deed, experiment, verdict, outcome)
    elif action.kind is not ActionKind.NOTHING:
        _await(deed, experiment, action, phase, action.text)


def _settle_phase(
    deed: Deed, experiment: ExperimentRow, phase: PhaseRow, verdict: Verdict | None
) -> None:
    if verdict is None:
        return
    phase.verdict = verdict
    if phase.state == PhaseState.ACTIVE and verdict is not Verdict.INCONCLUSIVE:
        event = PhaseEvent.FAIL if verdict is Verdict.NO_GO else PhaseEvent.PASS
        move_phase(deed, experiment, phase, event)


def _queue(
    deed: Deed, experiment: ExperimentRow, phase: str, action: Action, point: ResumePoint | None
) -> None:
    if point is not None and point.step and not action.resume:
        point = None  # from its first step, at most with the weights of another phase
    reason = action.reason or RunReason.RERUN
    queue_run(deed, experiment, phase, reason, resume_from=point, change=action.change)


def _await(deed: Deed, experiment: ExperimentRow, action: Action, phase: str, text: str) -> None:
    """Wait for a person, under the verdict so far; alert about a new approval."""
    experiment.verdict = total_verdict(deed.session, experiment)
    awaited = Awaited(kind=AwaitedKind.DECISION, phase=phase, text=f"a decision: {text}")
    if action.kind in (ActionKind.START_PHASE, ActionKind.AWAIT_APPROVAL):
        awaited = Awaited(
            kind=AwaitedKind.APPROVAL,
            phase=phase,
            text=f"an approval: {text}",
            following=action.phase,
            asked_at=round(deed.now, 3),
            expires_s=action.expires_s,
        )
        before = experiment.awaiting
        known = before is not None and (before.kind, before.following)
        if known != (awaited.kind, awaited.following):
            text = approval_text(experiment.id, experiment.name, awaited)
            queue_alert(deed, experiment, AlertType.APPROVAL_ASKED, text, phase=awaited.phase)
    if experiment.state == ExperimentState.AWAITING_DECISION:
        experiment.awaiting = awaited
    else:
        await_person(deed, experiment, awaited)


def cancel_now(deed: Deed, experiment: ExperimentRow) -> None:
    """Finish a cancelled experiment without a verdict."""
    if experiment.stop is None:
        raise Conflict("nobody cancelled it", state=experiment.state)
    text = experiment.stop.told()
    outcome = Outcome(code=OutcomeCode.CANCELLED, actor=Actor.OPERATOR, text=text)
    finish(deed, experiment, None, outcome)


def record_approval(
    deed: Deed, experiment: ExperimentRow, state: ConditionState, *, reason: str | None
) -> None:
    """Record that the awaited approval, if any, was given (met) or expired (missed)."""
    asked = open_approval(experiment)
    if asked is None or experiment.awaiting is None:
        return
    record_conditions(
        deed,
        experiment,
        [in_state(asked, state)],
        phase=experiment.awaiting.phase,
        actor=deed.actor if state is ConditionState.MET else SERVICE_ACTOR,
        reason=reason,
    )


def expire_approval(deed: Deed, experiment_id: str) -> None:
    """Let an approval expire that nobody gave in time."""
    experiment = lock_experiment(deed, experiment_id)
    awaited = experiment.awaiting
    waits = experiment.state == ExperimentState.AWAITING_DECISION
    if not waits or awaited is None or open_approval(experiment) is None:
        return
    phase = awaited.phase
    action = decide_expiry(resolved_of(experiment).parsed(), phase, *clock_of(awaited, deed.now))
    if action is None:
        return
    record_approval(deed, experiment, ConditionState.MISSED, reason=action.text)
    record_event(deed, experiment, "approval.expired", phase=phase, text=action.text)
    act(deed, experiment, phase, action, {}, None)


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


def _record_missed(
    deed: Deed, experiment: ExperimentRow, conditions: Sequence[Condition], phase: str
) -> None:
    """Record due conditions as missed, with their criteria over the last completed run."""
    results = [_unmet(deed, experiment, condition) for condition in conditions]
    record_conditions(
        deed,
        experiment,
        conditions,
        phase=phase,
        criteria=[result for result in results if result is not None],
        reason="missed: " + ", ".join(condition.id for condition in conditions),
    )


def _unmet(deed: Deed, experiment: ExperimentRow, condition: Condition) -> CriterionResult | None:
    if condition.evidence_from is None:
        return None
    for run in reversed(load_attempts(deed.session, experiment.id, condition.evidence_from)):
        if run.outcome.klass is not OutcomeClass.SUCCESS:
            continue
        row = deed.session.get_one(AssessmentRow, run.run)
        facts = Facts.model_validate_json(row.facts)
        if condition.id not in facts.measures:
            continue
        rules = Rules.model_validate_json(row.rules)
        criterion = rules.criteria().get(condition.id)
        if criterion is None:
            return None
        result = evaluate(criterion, facts.measures[condition.id], rules.world_size or 0)
        return None if result.outcome is CriterionOutcome.PASS else result
    return None
