"""Small passes of the conductor: approvals, campaigns, deadlines, cursors, files, accounts."""

from functools import partial
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.canonical import wire_value
from gonogo.contract.criterion import Metric
from gonogo.contract.errors import Unavailable
from gonogo.contract.lifecycle import RunState
from service.campaigns import advance, load_running
from service.context import Context
from service.db.schema import AccountRow, EventRow, ExperimentRow, IdempotencyRow, RunRow
from service.experiments.awaited import is_expired
from service.experiments.decisions import expire_approval, save_missing
from service.experiments.forecasts import load_forecast
from service.experiments.lifecycle import (
    CONDUCTOR,
    Deed,
    lock_run,
    queue_alert,
    record_event,
    with_next,
)
from service.http.dependencies import KEPT_S
from service.queries.experiments import load_awaiting, phases_of, runs_of, was_told
from service.views.goodput import RunAccount, load_accounts

FILES_S = 30.0
LATE = AlertType.RUN_LATE
_BATCH = 1_000


def expire_approvals(context: Context) -> None:
    """Let approvals expire that nobody gave in time."""
    for row in context.store.read(load_awaiting):
        if is_expired(row, context.now()):
            context.write(CONDUCTOR, expire_approval, row.id)


def advance_campaigns(context: Context) -> None:
    """Take the next step of each campaign whose runs have all ended."""
    errors = []
    for campaign in context.store.read(load_running):
        try:
            context.write(CONDUCTOR, advance, campaign)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one campaign never holds up the others
            errors.append(error)
    if errors:
        raise errors[0]


def alert_late(context: Context) -> None:
    """Alert once about each run that is too slow for the deadline of its plan."""
    for run, text in context.store.read(load_late).items():
        context.write(CONDUCTOR, alert_late_run, run, text)


def load_late(session: Session) -> dict[str, str]:
    """Return run → text, of the active runs that will miss their deadline, not alerted about."""
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.RUNNING.value)
    )
    late = {}
    for run, experiment in session.execute(query):
        gate = (run.order or {}).get("gate", ())
        if not any(row.get("metric") == Metric.FORECAST_S for row in gate):
            continue
        if was_told(session, run.experiment, run.id, LATE.value):
            continue
        phases, runs = phases_of(session, experiment.id), runs_of(session, experiment.id)
        found = load_forecast(session, experiment, phases, runs)
        if found.late and found.deadline_s is not None and found.step_s is not None:
            late[run.id] = (
                f"{experiment.name}, {run.phase}: at {found.step_s:.3g} s a step the plan's"
                f" deadline of {found.deadline_s:g} s for what comes after this phase cannot be met"
            )
    return late


def alert_late_run(deed: Deed, run: str, text: str) -> None:
    """Alert about a run that will be late, unless that was done, or it has ended, since."""
    experiment, row = lock_run(deed, run)
    if row.state != RunState.RUNNING or was_told(deed.session, row.experiment, run, LATE.value):
        return
    record_event(deed, experiment, LATE.value, run=row, text=text)
    queue_alert(deed, experiment, LATE, with_next(text, f"forecast {experiment.id}"), run=row)


def assign_all_cursors(context: Context) -> None:
    """Give every committed event its cursor."""
    while context.store.read(has_waiting) and not context.closing.is_set():
        context.store.write(partial(assign_cursors, now=context.now()))


def has_waiting(session: Session) -> bool:
    """Say whether an event has no cursor yet."""
    query = select(EventRow.id).where(EventRow.cursor.is_(None)).limit(1)
    return session.scalars(query).first() is not None


def assign_cursors(session: Session, now: float) -> int:
    """Give committed events their place in the order of all; return how many got one.

    The order is by time, and by `seq` within an experiment. Only the one conductor does this, after
    the commit, so a reader never finds a smaller cursor later. Cursors grow with the milliseconds,
    so a restored database gives out none that it gave out before.
    """
    due = func.max(EventRow.at).over(partition_by=EventRow.experiment, order_by=EventRow.seq)
    query = select(EventRow.id).where(EventRow.cursor.is_(None)).limit(_BATCH)
    ids = session.scalars(query.order_by(due, EventRow.experiment, EventRow.seq)).all()
    if not ids:
        return 0
    last = session.scalars(select(func.max(EventRow.cursor))).one() or 0
    first = max(last + 1, int(now * 1000))
    places = [{"id": event, "cursor": number} for number, event in enumerate(ids, start=first)]
    session.execute(update(EventRow), places)
    return len(ids)


def save_decision_files(context: Context) -> None:
    """Write the decision files that the home lacks; every service does, also one that does not
    conduct."""
    folder = context.settings.decisions
    context.store.read(lambda session: save_missing(folder, session))


def forget_keys(context: Context) -> None:
    """Delete the idempotency keys of yesterday."""
    old = IdempotencyRow.created_at < context.now() - KEPT_S
    found = select(IdempotencyRow.key).where(old).limit(1)
    if context.store.read(lambda session: session.scalars(found).first()) is not None:
        context.store.write(
            lambda session: session.execute(delete(IdempotencyRow).where(old)) and None
        )


EVERY_S = 60.0
"""How old the account of a living run may become."""
AT_ONCE = 50
LONGEST_S = 5.0
"""Runs of one pass; the others are next."""


def update_accounts(context: Context) -> None:
    """Take forward the accounts of where the time of runs went, for a few seconds at most.

    They are stored, so that pages and metrics read no old heartbeats. The runs of an experiment are
    taken together: a later attempt shows what of an earlier one was kept.
    """
    until = context.mono() + LONGEST_S
    while context.mono() < until and not context.closing.is_set():
        rows, more = context.store.read(partial(_due_rows, now=context.now()))
        if rows:
            context.store.write(partial(_store, rows=rows))
        if not more:
            return


def _due_rows(session: Session, now: float) -> tuple[list[dict[str, Any]], bool]:
    due = find_due(session, now - EVERY_S)
    rows = [row for name in dict.fromkeys(due) for row in _rows_of(session, name, now)]
    return rows, len(due) == AT_ONCE


def find_due(session: Session, before: float) -> list[str]:
    """Return experiments with a run whose account is open and older than a moment, oldest first."""
    query = (
        select(RunRow.experiment)
        .outerjoin(AccountRow, AccountRow.run == RunRow.id)
        .where(
            RunRow.state != RunState.QUEUED.value,
            or_(
                AccountRow.run.is_(None),
                AccountRow.closed.is_(False) & (AccountRow.at < before),
            ),
        )
        .order_by(AccountRow.at.nulls_first())
        .limit(AT_ONCE)
    )
    return list(session.scalars(query))


def _rows_of(session: Session, experiment: str, now: float) -> list[dict[str, Any]]:
    accounts = load_accounts(session, experiment, now)
    return [_row(found, now) for found in accounts if found.row.state != RunState.QUEUED]


def _row(found: RunAccount, now: float) -> dict[str, Any]:
    run, fold = found.row, found.fold
    return {
        "run": run.id,
        "rank": fold.rank,
        "bytes": fold.bytes,
        "told": wire_value(fold.told.model_dump(mode="json")) if fold.told is not None else {},
        "at": now,
        "closed": run.state == RunState.ENDED and run.judged,
        "devices": max(1, run.gpus or 1),
        "seconds": {part.value: seconds for part, seconds in found.seconds.items()},
    }


def _store(session: Session, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        session.merge(AccountRow(**row))
