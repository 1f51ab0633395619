"""Transitions, events and alerts of experiments, phases and runs, under one lock.

A transition is one transaction: the experiment's row lock, compare-and-set on state and token, the
event, and the alert if there is one. So the events of an experiment have one order without gaps,
and the second of two writers gets a `Conflict`. Locks are taken in the order experiment → run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertData, AlertType, OverrideView
from gonogo.contract.decision import Decision, DecisionKind
from gonogo.contract.errors import Conflict, NotFound
from gonogo.contract.lifecycle import (
    EXPERIMENT_TRANSITIONS,
    PHASE_TRANSITIONS,
    RUN_TRANSITIONS,
    ExperimentEvent,
    ExperimentState,
    PhaseEvent,
    RunEvent,
    RunState,
    advance,
)
from gonogo.contract.wire import Kind, is_id, new_id
from gonogo.judge.follow_up.summary import joined
from gonogo.ledger.seal import SERVICE_ACTOR
from service.db.columns import Awaited
from service.db.schema import AlertRow, EventRow, ExperimentRow, PhaseRow, RunRow
from service.db.store import Topic, ring
from service.queries.runs import load_run
from service.text import stamp

CONDUCTOR = "conductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One transaction in which someone does something."""

    session: Session
    now: float
    actor: str = CONDUCTOR


def lock_experiment(deed: Deed, experiment: str) -> ExperimentRow:
    """Return an experiment, locked until the transaction ends."""
    if is_id(experiment, Kind.EXPERIMENT):
        query = select(ExperimentRow).where(ExperimentRow.id == experiment).with_for_update()
        row = deed.session.scalars(query.execution_options(populate_existing=True)).first()
        if row is not None:
            return row
    raise NotFound(f"there is no experiment {experiment}")


def lock_run(deed: Deed, run: str) -> tuple[ExperimentRow, RunRow]:
    """Return a run and its experiment, both fresh, the experiment locked."""
    experiment = lock_experiment(deed, load_run(deed.session, run).experiment)
    row = deed.session.get_one(RunRow, run, populate_existing=True)
    return experiment, row


def record_event(
    deed: Deed,
    experiment: ExperimentRow,
    kind: str,
    /,
    *,
    run: RunRow | None = None,
    phase: str | None = None,
    **data: Any,
) -> None:
    """Append an event about a run, or a phase, under the experiment's lock."""
    experiment.event_seq += 1
    ring(deed.session, Topic.EVENTS)
    deed.session.add(
        EventRow(
            id=new_id(Kind.EVENT),
            experiment=experiment.id,
            seq=experiment.event_seq,
            cursor=None,
            type=kind,
            run=run.id if run else None,
            phase=run.phase if run else phase,
            actor=deed.actor,
            at=deed.now,
            data=data,
        )
    )


def queue_alert(
    deed: Deed,
    experiment: ExperimentRow,
    kind: AlertType,
    text: str,
    *,
    run: RunRow | None = None,
    **more: Any,
) -> None:
    """Put an alert about an experiment into the outbox; it leaves after the commit, or never."""
    about: dict[str, Any] = {} if run is None else {"run": run.id, "phase": run.phase}
    data = AlertData(
        alert_id=new_id(Kind.ALERT), experiment=experiment.id, text=text, url="", **about, **more
    )
    ring(deed.session, Topic.ALERTS)
    deed.session.add(
        AlertRow(
            id=data.alert_id,
            type=kind.value,
            experiment=experiment.id,
            run=data.run,
            data=data.wire(),
            at=deed.now,
        )
    )


def move_experiment(deed: Deed, row: ExperimentRow, event: ExperimentEvent, **data: Any) -> None:
    """Let an experiment make a transition."""
    old, new = row.state, advance(EXPERIMENT_TRANSITIONS, row.state, event)
    _swap(deed, ExperimentRow, old, new, ExperimentRow.id == row.id)
    if event is ExperimentEvent.START:
        row.started_at = deed.now
    if new is ExperimentState.FINISHED:
        row.ended_at = deed.now
    record_event(deed, row, "experiment.state", state=new.value, before=old, event=event, **data)


def move_phase(deed: Deed, row: ExperimentRow, phase: PhaseRow, event: PhaseEvent) -> None:
    """Let a phase make a transition."""
    old, new = phase.state, advance(PHASE_TRANSITIONS, phase.state, event)
    _swap(deed, PhaseRow, old, new, PhaseRow.experiment == row.id, PhaseRow.name == phase.name)
    data: dict[str, Any] = {"state": new.value, "before": old, "event": event}
    record_event(deed, row, "phase.state", phase=phase.name, **data)


def move_run(
    deed: Deed, row: ExperimentRow, run: RunRow, event: RunEvent, *, token: int, **data: Any
) -> None:
    """Let a run make a transition."""
    old, new = run.state, advance(RUN_TRANSITIONS, run.state, event)
    _swap(deed, RunRow, old, new, RunRow.id == run.id, RunRow.token == token)
    if event is RunEvent.LAUNCH:
        run.started_at = deed.now
    if new is RunState.ENDED:
        run.ended_at = deed.now
        run.suspect = run.lost = False
        ring(deed.session, Topic.ENDED)
    data = {"state": new.value, "before": old, "event": event, "attempt": run.attempt, **data}
    record_event(deed, row, "run.state", run=run, **data)


def _swap(
    deed: Deed,
    table: type[ExperimentRow | PhaseRow | RunRow],
    old: str,
    new: str,
    *where: ColumnElement[bool],
) -> None:
    deed.session.flush()
    done = deed.session.execute(update(table).where(*where, table.state == old).values(state=new))
    if done.rowcount != 1:  # type: ignore[attr-defined]  # a CursorResult
        raise Conflict("another change was faster; read it again", state=old)


def decision_text(
    experiment: str, name: str, decision: Decision, overrides: Sequence[OverrideView]
) -> str:
    """Return the text of the alert that a decision was made."""
    place = f"{name}, {decision.phase}" if decision.phase else name
    verdict = decision.verdict.value if decision.verdict else "no verdict"
    words = f"{verdict} by hand" if decision.by_hand and decision.verdict else verdict
    parts = [f"{place}: {words} ({decision.kind})"]
    parts += _why(decision, overrides)
    others = [row.phase for row in overrides if row.decision != decision.id]
    if others:
        parts.append(f"Decided by hand before: {joined(others)}")
    return with_next(". ".join(part.rstrip(".") for part in parts), f"show {experiment}")


def with_next(text: str, command: str) -> str:
    """Return a text with the command of `gonogo` to type."""
    return f"{text.rstrip('.')}. Next: gonogo {command}"


def approval_text(experiment: str, name: str, awaited: Awaited) -> str:
    """Return the text of the alert that a person's approval is waited for."""
    parts = [f"{name}, {awaited.phase}: waits for {awaited.text}"]
    if awaited.expires_s is not None and awaited.asked_at is not None:
        parts.append(f"It is taken until {stamp(awaited.asked_at + awaited.expires_s)}")
    return with_next(". ".join(parts), f"promote {experiment} --reason WHY")


def _why(decision: Decision, overrides: Sequence[OverrideView]) -> list[str]:
    own = next((row for row in overrides if row.decision == decision.id), None)
    if decision.kind is DecisionKind.HUMAN:
        evidence = "nothing" if own is None or own.evidence is None else own.evidence
        parts = [f"{decision.actor}: {decision.reason}", f"The evidence says {evidence}"]
        return [*parts, f"Never ran: {joined(decision.never_ran)}"] if decision.never_ran else parts
    if decision.kind is DecisionKind.CONDITION and decision.actor != SERVICE_ACTOR:
        parts = [f"{decision.actor}: {decision.reason or 'gave no reason'}"]
        parts += [f"Waived: {joined(decision.waives)}"] if decision.waives else []
        return [*parts, f"The evidence says {own.evidence}"] if own and own.evidence else parts
    if decision.cause is not None:
        look = f"Look at {'; '.join(decision.cause.look)}" if decision.cause.look else ""
        return [decision.cause.told(), *([look] if look else [])]
    return [decision.reason] if decision.kind is DecisionKind.CONDITION and decision.reason else []
