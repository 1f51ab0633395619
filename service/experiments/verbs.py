"""The verbs: what a person may ask of an experiment, and what that does; a person's own verdict.

Each verb returns whether it changed anything. A verb that the state does not allow is a `Conflict`
that names what is allowed. `halt` or `cancel` asked a second time no longer waits for a run that is
leaving. A person's verdict acts while a decision is awaited; once it is over, nothing starts.
"""

from collections.abc import Callable
from functools import partial

from gonogo.contract.api import Override
from gonogo.contract.decision import PASSING, ConditionState, DecisionKind
from gonogo.contract.errors import Conflict, NotFound
from gonogo.contract.lifecycle import ExperimentEvent, ExperimentState, PhaseState, RunState
from gonogo.contract.order import ResumePoint, RunReason
from gonogo.contract.outcome import TAKEN_OVER, Actor, Outcome, OutcomeClass, OutcomeCode
from gonogo.judge.follow_up.decide import Action, ActionKind, decide_override, decide_promotion
from gonogo.judge.gate.conditions import in_state
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import Entry
from service.db.columns import Asked, Stop, StopKind
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.experiments.advance import (
    active_phase,
    continue_experiment,
    current_run,
    end_without_worker,
    give_up_rest,
    owed_run,
    queue_run,
    resolved_of,
)
from service.experiments.decisions import (
    act,
    cancel_now,
    load_conditions,
    record_approval,
    record_conditions,
    record_decision,
    total_verdict,
    waive_expired,
)
from service.experiments.lifecycle import Deed, move_experiment, record_event
from service.experiments.state import ANSWERS, open_approval, verbs_of
from service.queries.experiments import phases_of, runs_of

_ENDS_AS = {StopKind.HALT: OutcomeCode.HALTED, StopKind.CANCEL: OutcomeCode.CANCELLED}
Points = dict[str, ResumePoint]
Verb = Callable[[Deed, ExperimentRow, str, Points], bool]
AGAIN_AFTER_S = 2.0
"""A second word that comes sooner is a double click."""


def require(deed: Deed, experiment: ExperimentRow, verb: str) -> None:
    """Refuse a verb that the experiment's state does not allow."""
    session = deed.session
    phases, runs = phases_of(session, experiment.id), runs_of(session, experiment.id)
    allowed = verbs_of(experiment, phases, runs, deed.now)
    if verb not in allowed:
        raise Conflict(
            f"{verb} is not possible in state {experiment.state}",
            state=experiment.state,
            allowed=allowed,
        )


def halt(deed: Deed, experiment: ExperimentRow, reason: str, points: Points) -> bool:
    """Stop with a checkpoint, asked again at once; then a decision is awaited."""
    stopped = experiment.state in (ExperimentState.STOPPING, ExperimentState.AWAITING_DECISION)
    if stopped and _stop_of(experiment) is StopKind.HALT:
        return _stop_at_once(deed, experiment, reason)
    require(deed, experiment, "halt")
    _stop(deed, experiment, StopKind.HALT, reason)
    return True


def cancel(deed: Deed, experiment: ExperimentRow, reason: str, points: Points) -> bool:
    """Stop and finish without a verdict."""
    if _stop_of(experiment) is StopKind.CANCEL:
        return _stop_at_once(deed, experiment, reason)
    require(deed, experiment, "cancel")
    if experiment.state == ExperimentState.AWAITING_DECISION:
        _note_stop(deed, experiment, StopKind.CANCEL, reason)
        cancel_now(deed, experiment)
    else:
        _stop(deed, experiment, StopKind.CANCEL, reason)
    return True


def _stop_of(experiment: ExperimentRow) -> StopKind | None:
    return experiment.stop.kind if experiment.stop is not None else None


def _note_stop(deed: Deed, experiment: ExperimentRow, kind: StopKind, reason: str) -> None:
    experiment.stop = Stop(kind=kind, reason=reason, actor=deed.actor, asked_at=round(deed.now, 3))
    record_event(deed, experiment, "experiment.stop", kind=kind.value, reason=reason)


def _stop_at_once(deed: Deed, experiment: ExperimentRow, reason: str) -> bool:
    stop, run = experiment.stop, current_run(deed, experiment)
    if stop is None or stop.again or run is None or run.command is None:
        return False
    if stop.asked_at is not None and 0.0 <= deed.now - stop.asked_at < AGAIN_AFTER_S:
        return False
    told = Stop(kind=stop.kind, reason=reason or stop.reason, actor=deed.actor, again=True)
    experiment.stop = run.command = told
    record_event(deed, experiment, "experiment.stop", kind=f"{stop.kind} at once", reason=reason)
    return True


def _stop(deed: Deed, experiment: ExperimentRow, kind: StopKind, reason: str) -> None:
    _note_stop(deed, experiment, kind, reason)
    if experiment.state != ExperimentState.STOPPING:
        move_experiment(deed, experiment, ExperimentEvent.STOP)
    run = current_run(deed, experiment)
    if run is None:  # it has ended; what follows its judgement sees the stop
        owed = owed_run(deed, experiment)
        if owed is not None:
            give_up_rest(deed, experiment, owed, f"{deed.actor}: {kind}")
        return
    if run.state == RunState.QUEUED:
        text = Asked(reason=reason, actor=deed.actor).told()
        end_without_worker(deed, experiment, run, _ENDS_AS[kind], Actor.OPERATOR, text)
        return
    run.command = experiment.stop


def _is_again(deed: Deed, experiment: ExperimentRow, why: RunReason) -> bool:
    run = current_run(deed, experiment)
    if experiment.state != ExperimentState.RUNNING or run is None:
        return False
    if why is RunReason.RESUME and run.reason in ANSWERS:
        before = _last_ended(deed, experiment, run.phase)
        return before is not None and before.klass in (OutcomeClass.OPERATOR, OutcomeClass.INFRA)
    return run.reason == why


def _last_ended(deed: Deed, experiment: ExperimentRow, phase: str | None = None) -> Outcome | None:
    """Return why the last run of an experiment, or of a phase, ended."""
    rows = runs_of(deed.session, experiment.id, phase)
    return next((row.outcome for row in reversed(rows) if row.outcome is not None), None)


def _start_again(
    deed: Deed, experiment: ExperimentRow, reason: str, points: Points, *, why: RunReason
) -> bool:
    """Continue the undecided phase from its last durable checkpoint, or rerun it from its start."""
    if _is_again(deed, experiment, why):
        return False
    require(deed, experiment, why.value)
    phase = active_phase(deed, experiment)
    if phase is None:
        raise Conflict("no phase is open", state=experiment.state)
    continue_experiment(deed, experiment)
    record_event(deed, experiment, f"experiment.{why}", phase=phase.name, reason=reason)
    before = runs_of(deed.session, experiment.id, phase.name)
    change = None
    if why is RunReason.RESUME and before and before[-1].reason in ANSWERS:
        why, change = before[-1].reason, before[-1].change  # a confirmation or remedy stays one
    point = points.get(phase.name)
    queue_run(deed, experiment, phase.name, why, resume_from=point, change=change)
    return True


def promote(deed: Deed, experiment: ExperimentRow, reason: str, points: Points) -> bool:
    """Approve the next phase."""
    passed = [
        row for row in phases_of(deed.session, experiment.id) if row.state == PhaseState.PASSED
    ]
    if experiment.state == ExperimentState.RUNNING and passed and passed[-1].approved_by:
        return False
    require(deed, experiment, "promote")
    phase = passed[-1]
    phase.approved_by = deed.actor
    record_event(deed, experiment, "phase.approved", phase=phase.name, reason=reason)
    record_approval(deed, experiment, ConditionState.MET, reason=reason or None)
    experiment.stop = None
    conditions = load_conditions(deed.session, experiment.id)
    plan = resolved_of(experiment).parsed()
    action = decide_promotion(plan, phase.name, conditions)
    act(deed, experiment, phase.name, action, points, _last_ended(deed, experiment))
    return True


def takeover(deed: Deed, experiment: ExperimentRow, reason: str, points: Points) -> bool:
    """End an attempt on a person's word and start the next from the last durable checkpoint."""
    run = current_run(deed, experiment)
    if run is not None and run.state == RunState.QUEUED:
        before = _last_ended(deed, experiment, run.phase)
        if before is not None and before.code in TAKEN_OVER:
            return False
    require(deed, experiment, "takeover")
    text = Asked(reason=reason, actor=deed.actor).told()
    owed = owed_run(deed, experiment)
    if run is None and owed is not None:
        give_up_rest(deed, experiment, owed, text)
    if run is not None:
        replace_run(deed, experiment, run, OutcomeCode.SUPERSEDED, Actor.OPERATOR, text, points)
    return True


def replace_run(
    deed: Deed,
    experiment: ExperimentRow,
    run: RunRow,
    code: OutcomeCode,
    actor: Actor,
    text: str,
    points: Points,
) -> None:
    """End an attempt that is known to be dead; queue the next, unless a stop was asked.

    A confirmation stays one, and a remedy keeps its patch. If the run's own lines show a failure,
    nothing is queued: the attempt is judged.
    """
    stop = _stop_of(experiment)
    if stop is not None:
        end_without_worker(deed, experiment, run, _ENDS_AS[stop], Actor.OPERATOR, text)
        return  # the judgement that follows does what the stop asked for
    ended = end_without_worker(deed, experiment, run, code, actor, text)
    if ended.code is not code:
        return
    queue_run(
        deed,
        experiment,
        run.phase,
        run.reason if run.reason in ANSWERS else RunReason.TAKEOVER,
        resume_from=points.get(run.phase),
        change=run.change,
    )


VERBS: dict[str, Verb] = {
    "halt": halt,
    "cancel": cancel,
    "resume": partial(_start_again, why=RunReason.RESUME),
    "promote": promote,
    "rerun": partial(_start_again, why=RunReason.RERUN),
    "takeover": takeover,
}


def override(
    deed: Deed, experiment: ExperimentRow, said: Override, points: dict[str, ResumePoint]
) -> RecordedDecision:
    """Record a person's verdict (or his waiving of a condition), and do what it means."""
    if said.condition is not None:
        return _waive(deed, experiment, said)
    require(deed, experiment, "override")
    phase = _phase_of(deed, experiment)
    runs = runs_of(deed.session, experiment.id, phase.name)
    awaiting = experiment.state == ExperimentState.AWAITING_DECISION
    action = decide_override(
        resolved_of(experiment).parsed(),
        phase.name,
        said.verdict,
        awaiting=awaiting,
        conditions=load_conditions(deed.session, experiment.id),
    )
    if said.verdict in PASSING:
        _refuse_to_end(experiment, action)
    decision = record_decision(
        deed,
        experiment,
        Entry(
            kind=DecisionKind.HUMAN,
            verdict=said.verdict,
            actor=deed.actor,
            reason=said.reason,
            never_ran=[] if awaiting else _never_ran(deed, experiment),
        ),
        phase=phase.name,
        run=runs[-1].id if runs else None,
        supersede=True,
    )
    if awaiting and said.verdict in PASSING:
        phase.verdict = said.verdict  # decisions about conditions need it
        waive_expired(deed, experiment, phase.name, reason=said.reason)
    if awaiting:
        experiment.stop = None
        act(deed, experiment, phase.name, action, points, _last_ended(deed, experiment))
    else:
        phase.verdict = experiment.verdict = said.verdict
    return decision


def _refuse_to_end(experiment: ExperimentRow, action: Action) -> None:
    """Refuse a GO that would end the experiment by a condition that is due and not met."""
    if action.kind is ActionKind.FINISH and action.missed:
        names = " and ".join(row.id for row in action.missed)
        raise Conflict(
            f"going on would miss {names} and end as NO_GO; waive it first:"
            f" gonogo override {experiment.id} CONDITIONAL_GO --condition {action.missed[0].id}"
            " --reason WHY",
            state=experiment.state,
            allowed=("override", "cancel"),
        )


def _never_ran(deed: Deed, experiment: ExperimentRow) -> list[str]:
    runs = runs_of(deed.session, experiment.id)
    ran = {run.phase for run in runs if run.claimed_at is not None}
    return [row.name for row in phases_of(deed.session, experiment.id) if row.name not in ran]


def _phase_of(deed: Deed, experiment: ExperimentRow) -> PhaseRow:
    """Return the phase that a verdict is about: the one awaited, else the last that ran."""
    phases = phases_of(deed.session, experiment.id)
    awaited = experiment.awaiting.phase if experiment.awaiting is not None else None
    for phase in phases:
        if phase.name == awaited:
            return phase
    ran = {run.phase for run in runs_of(deed.session, experiment.id)}
    return [phase for phase in phases if phase.name in ran][-1]


def _waive(deed: Deed, experiment: ExperimentRow, said: Override) -> RecordedDecision:
    rows = {row.condition.id: row.condition for row in load_conditions(deed.session, experiment.id)}
    condition = rows.get(said.condition or "")
    asked = open_approval(experiment)
    if asked is not None and asked.id == said.condition:
        raise Conflict(
            f"{asked.id} is an approval, given by: gonogo promote {experiment.id} --reason WHY",
            state=experiment.state,
            allowed=("promote", "override", "cancel"),
        )
    if condition is None:
        raise NotFound(f"there is no condition {said.condition}")
    if condition.state not in (ConditionState.OPEN, ConditionState.MISSED):
        raise Conflict(f"the condition is {condition.state}", state=condition.state)
    decision = record_conditions(
        deed,
        experiment,
        [in_state(condition, ConditionState.WAIVED)],
        phase=condition.id.partition(":")[0],
        actor=deed.actor,
        reason=said.reason,
    )
    if experiment.state == ExperimentState.FINISHED and experiment.verdict is not None:
        experiment.verdict = total_verdict(deed.session, experiment)  # a cancelled one has none
    return decision
