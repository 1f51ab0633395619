"""Recording decisions, and doing what follows from them.

A decision is sealed into the experiment's chain, with an alert, once. Every service writes the
files of decisions that its home lacks. `gonogo.judge.follow_up.decide` says what comes next, `act`
does it. An operator's stop outranks it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionResult,
    Decision,
    DecisionKind,
    Verdict,
)
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import ExperimentState, PhaseEvent, PhaseState
from gonogo.contract.order import OpenCondition, ResumePoint, RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.contract.wire import Kind, new_id
from gonogo.judge.follow_up.decide import Action, ActionKind, decide_expiry
from gonogo.judge.gate.conditions import conditions_of, experiment_verdict, in_state, is_approval
from gonogo.ledger.recorded import RecordedDecision, parse_decision
from gonogo.ledger.seal import SERVICE_ACTOR, Entry, Place, append
from gonogo.ledger.sign import SigningKey
from gonogo.rundir import save_json
from service.db.columns import Awaited, AwaitedKind, StopKind
from service.db.schema import (
    ConditionRow,
    DecisionRow,
    ExperimentRow,
    PhaseRow,
    RunRow,
)
from service.db.store import Topic, ring
from service.experiments.advance import (
    await_person,
    continue_experiment,
    finish,
    queue_run,
    resolved_of,
    start_phase,
)
from service.experiments.lifecycle import (
    Deed,
    approval_text,
    decision_text,
    lock_experiment,
    move_phase,
    queue_alert,
    record_event,
)
from service.experiments.state import clock_of, load_decided, open_approval
from service.queries.experiments import (
    load_chain,
    load_decisions,
    load_documents,
    phases_of,
)
from service.text import stamp

SIGNING_KEY = "signing_key"
"""Where a session carries the home's key (`Store`)."""


def record_decision(
    deed: Deed,
    experiment: ExperimentRow,
    entry: Entry,
    *,
    phase: str | None,
    run: str | None,
    supersede: bool = False,
) -> RecordedDecision:
    """Append a decision to its experiment's chain, signed by the home, and return it."""
    key: SigningKey = deed.session.info[SIGNING_KEY]
    earlier = load_chain(deed.session, experiment.id)
    about = [
        row.id for row in earlier if row.phase == phase and row.kind is not DecisionKind.CONDITION
    ]
    experiment.decision_seq += 1
    place = Place(
        id=new_id(Kind.DECISION),
        seq=experiment.decision_seq,
        experiment=experiment.id,
        phase=phase,
        run=run,
        at=stamp(deed.now),
        prev_hash=earlier[-1].hash if earlier else None,
        supersedes=about[-1] if supersede and about else None,
    )
    recorded = append(entry, place, key)
    decision = recorded.decision
    deed.session.add(
        DecisionRow(
            id=decision.id,
            experiment=experiment.id,
            seq=decision.seq,
            phase=phase,
            run=run,
            kind=decision.kind,
            verdict=decision.verdict,
            hash=decision.hash,
            at=deed.now,
            document=canonical_bytes(recorded.document).decode(),
            cause=decision.cause,
        )
    )
    deed.session.flush()
    ring(deed.session, Topic.DECIDED)
    _tell(deed, experiment, decision)
    _show_conditions(deed, experiment)
    return recorded


def _tell(deed: Deed, experiment: ExperimentRow, decision: Decision) -> None:
    record_event(
        deed,
        experiment,
        "decision.made",
        run=deed.session.get(RunRow, decision.run) if decision.run else None,
        phase=decision.phase,
        decision=decision.id,
        kind=decision.kind.value,
        by_hand=decision.by_hand,
        verdict=decision.verdict.value if decision.verdict else None,
        reason=decision.reason,
        seq=decision.seq,
        hash=decision.hash,
        key_id=decision.key_id,
    )
    queue_alert(
        deed,
        experiment,
        AlertType.DECISION_MADE,
        decision_text(
            experiment.id,
            experiment.name,
            decision,
            load_decided(deed.session, [experiment.id])[experiment.id].overrides,
        ),
        phase=decision.phase,
        decision=decision.model_dump(mode="json", exclude={"facts", "rules"}),
    )


def _show_conditions(deed: Deed, experiment: ExperimentRow) -> None:
    deed.session.execute(delete(ConditionRow).where(ConditionRow.experiment == experiment.id))
    rows = conditions_of(load_decisions(deed.session, experiment.id))
    deed.session.add_all(
        ConditionRow(
            experiment=experiment.id,
            id=row.condition.id,
            phase=row.condition.id.partition(":")[0],
            n=number,
            state=row.condition.state,
            document=row.condition.wire(),
        )
        for number, row in enumerate(rows)
    )
    deed.session.flush()


def load_conditions(session: Session, experiment: str) -> list[OpenCondition]:
    """Return every condition of an experiment in its present state."""
    return conditions_of(load_decisions(session, experiment))


def record_conditions(
    deed: Deed,
    experiment: ExperimentRow,
    conditions: Iterable[Condition],
    *,
    phase: str | None,
    run: str | None = None,
    criteria: Sequence[CriterionResult] = (),
    actor: str = SERVICE_ACTOR,
    reason: str | None = None,
) -> RecordedDecision:
    """Record that conditions are met, missed or waived, as `conditions` now say."""
    changed = {condition.id: condition for condition in conditions}
    known = {
        row.condition.id: row.condition for row in load_conditions(deed.session, experiment.id)
    }
    verdict = total_verdict(deed.session, experiment, {**known, **changed}.values())
    entry = Entry(
        kind=DecisionKind.CONDITION,
        verdict=verdict,
        criteria=list(criteria),
        conditions=list(changed.values()),
        actor=actor,
        reason=reason,
    )
    return record_decision(deed, experiment, entry, phase=phase, run=run)


def total_verdict(
    session: Session, experiment: ExperimentRow, conditions: Iterable[Condition] | None = None
) -> Verdict | None:
    """Return the verdict across an experiment's phases and conditions (default: as recorded)."""
    if conditions is None:
        conditions = [row.condition for row in load_conditions(session, experiment.id)]
    phases = {phase.name: phase.verdict for phase in phases_of(session, experiment.id)}
    return experiment_verdict(phases, conditions)


def save_missing(folder: Path, session: Session) -> int:
    """Write every decision's file that is missing; return how many they were."""
    present = {path.stem for path in folder.glob("dec_*.json")} if folder.is_dir() else set()
    missing = set(session.scalars(select(DecisionRow.id))) - present
    for decision in sorted(missing):
        recorded = parse_decision(load_documents(session, [decision])[decision])
        # by way of its canonical form: the same bytes for every writer and time
        save_json(folder / f"{decision}.json", json.loads(canonical_bytes(recorded.document)))
    return len(missing)


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
        reason = "missed: " + ", ".join(condition.id for condition in action.missed)
        record_conditions(deed, experiment, action.missed, phase=phase, reason=reason)
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
