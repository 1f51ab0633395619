"""How is the next action done? `gonogo.judge.course.decide` says what, this does it.

An operator's stop outranks what would come next: `halt` lets nothing start before a person says
so, `cancel` finishes.
"""

from gonogo.contract.api import AlertType
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import ExperimentState, PhaseState
from gonogo.contract.order import ResumePoint, RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.judge.course.action import Action, ActionKind
from gonogo.ledger.recorded import RecordedDecision
from service.db.documents import Awaited, AwaitedKind, StopKind
from service.db.schema import ExperimentRow, PhaseRow
from service.experiments.alert_text import approval_text
from service.experiments.course import (
    await_person,
    continue_experiment,
    fail_phase,
    finish,
    pass_phase,
    queue_run,
    start_phase,
)
from service.experiments.decisions import total_verdict
from service.experiments.lifecycle import Deed, queue_alert
from service.experiments.missed import record_missed
from service.queries.experiments import phases_of

_STARTS = (ActionKind.START_PHASE, ActionKind.START_RUN)


def act(
    deed: Deed,
    experiment: ExperimentRow,
    phase: str,
    action: Action,
    resume: dict[str, ResumePoint],
    outcome: Outcome | None,
) -> list[RecordedDecision]:
    """Do what comes after a verdict on a phase; return the decisions about missed conditions.

    Args:
        deed: the transaction.
        experiment: locked.
        phase: the phase that was judged.
        action: what is next.
        resume: phase → checkpoint that its next run may go on from.
        outcome: why the last run ended.
    """
    rows = {row.name: row for row in phases_of(deed.session, experiment.id)}
    _settle_phase(deed, experiment, rows[phase], action.verdict)
    made = []
    if action.missed:
        made.append(record_missed(deed, experiment, action.missed, phase=phase))
    stop = experiment.stop.kind if experiment.stop is not None else None
    if stop is StopKind.CANCEL:
        cancel_now(deed, experiment)
    elif stop is StopKind.HALT and action.kind in _STARTS:
        _await(deed, experiment, action, phase, f"halted; {action.text}")
    elif action.kind is ActionKind.START_PHASE and action.phase is not None:
        _go_on(deed, experiment)
        start_phase(deed, experiment, rows[action.phase], resume.get(action.phase))
    elif action.kind is ActionKind.START_RUN:
        _go_on(deed, experiment)
        _queue(deed, experiment, phase, action, resume)
    elif action.kind is ActionKind.FINISH:
        _finish(deed, experiment, action, outcome)
    elif action.kind is not ActionKind.NOTHING:
        _await(deed, experiment, action, phase, action.text)
    return made


def _settle_phase(
    deed: Deed, experiment: ExperimentRow, phase: PhaseRow, verdict: Verdict | None
) -> None:
    """Let a phase pass or fail by its verdict; one that has ended is only re-labelled."""
    if verdict is None:
        return
    if phase.state != PhaseState.ACTIVE or verdict is Verdict.INCONCLUSIVE:
        phase.verdict = verdict
    elif verdict is Verdict.NO_GO:
        fail_phase(deed, experiment, phase, verdict)
    else:
        pass_phase(deed, experiment, phase, verdict)


def _go_on(deed: Deed, experiment: ExperimentRow) -> None:
    if experiment.state == ExperimentState.AWAITING_DECISION:
        continue_experiment(deed, experiment)


def _queue(
    deed: Deed,
    experiment: ExperimentRow,
    phase: str,
    action: Action,
    resume: dict[str, ResumePoint],
) -> None:
    point = resume.get(phase)
    if point is not None and point.step and not action.resume:
        point = None  # from its first step: with the weights of another phase at most
    queue_run(
        deed,
        experiment,
        phase,
        action.reason or RunReason.RERUN,
        resume_from=point,
        change=action.change,
    )


def _finish(deed: Deed, experiment: ExperimentRow, action: Action, outcome: Outcome | None) -> None:
    code = outcome.code if outcome is not None else None
    cancelled = code is OutcomeCode.CANCELLED and action.verdict is None
    verdict = None if cancelled else total_verdict(deed.session, experiment)
    finish(deed, experiment, verdict, outcome)


def _await(deed: Deed, experiment: ExperimentRow, action: Action, phase: str, text: str) -> None:
    """Wait for a person, under the verdict so far."""
    experiment.verdict = total_verdict(deed.session, experiment)
    awaited = _awaited(action, phase, text, deed.now)
    _ask(deed, experiment, awaited)
    if experiment.state == ExperimentState.AWAITING_DECISION:
        experiment.awaiting = awaited
    else:
        await_person(deed, experiment, awaited)


def _ask(deed: Deed, experiment: ExperimentRow, awaited: Awaited) -> None:
    """Tell people of an approval that nobody was asked for before, and until when it is taken."""
    before = experiment.awaiting
    asked = before is not None and (before.kind, before.following) == (
        awaited.kind,
        awaited.following,
    )
    if awaited.kind is AwaitedKind.APPROVAL and not asked:
        text = approval_text(experiment.id, experiment.name, awaited)
        queue_alert(deed, experiment, AlertType.APPROVAL_ASKED, text, phase=awaited.phase)


def _awaited(action: Action, phase: str, text: str, now: float) -> Awaited:
    """Return what is asked of a person: a decision, or the approval of the phase that follows."""
    if action.kind not in (ActionKind.START_PHASE, ActionKind.AWAIT_APPROVAL):
        return Awaited(kind=AwaitedKind.DECISION, phase=phase, text=f"a decision: {text}")
    return Awaited(
        kind=AwaitedKind.APPROVAL,
        phase=phase,
        text=f"an approval: {text}",
        following=action.phase,
        asked_at=round(now, 3),
        expires_s=action.expires_s,
    )


def cancel_now(deed: Deed, experiment: ExperimentRow) -> None:
    """Finish a cancelled experiment: no verdict.

    Raises:
        Conflict: nobody asked for it.
    """
    if experiment.stop is None:
        raise Conflict("nobody cancelled it", state=experiment.state)
    text = experiment.stop.told()
    outcome = Outcome(code=OutcomeCode.CANCELLED, actor=Actor.OPERATOR, text=text)
    finish(deed, experiment, None, outcome)
