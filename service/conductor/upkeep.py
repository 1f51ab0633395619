"""Small passes of the conductor: approvals, campaigns, deadlines, cursors, files, old keys."""

from functools import partial

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.criterion import Metric
from gonogo.contract.errors import Unavailable
from gonogo.contract.lifecycle import RunState
from service.campaigns.step import advance, load_running
from service.context import Context
from service.db.schema import EventRow, ExperimentRow, IdempotencyRow, RunRow
from service.experiments.alert_text import with_next
from service.experiments.awaited import is_expired
from service.experiments.consequences import expire_approval
from service.experiments.decisions import save_missing, save_soon
from service.experiments.forecasts import load_forecast
from service.experiments.lifecycle import CONDUCTOR, Deed, lock_run, queue_alert, record_event
from service.http.idempotency import KEPT_S
from service.queries.events import was_told
from service.queries.experiments import load_awaiting, phases_of, runs_of

FILES_S = 30.0
"""How often a service looks which files of decisions its home lacks."""
LATE = AlertType.RUN_LATE
_BATCH = 1_000


def expire_approvals(context: Context) -> None:
    """Let approvals expire that nobody gave in time."""
    for experiment in context.store.read(lambda session: load_expired(session, context.now())):
        made = context.write(CONDUCTOR, expire_approval, experiment)
        if made is not None:
            save_soon(context.settings.decisions, made)


def load_expired(session: Session, now: float) -> list[str]:
    """Return the experiments whose approval has expired at `now` (Unix seconds)."""
    return [row.id for row in load_awaiting(session) if is_expired(row, now)]


def advance_campaigns(context: Context) -> None:
    """Take the next step of each campaign whose runs have all ended.

    Raises:
        Exception: what one of them failed for, once all have been looked at.
    """
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
    for run in context.store.read(load_late):
        context.write(CONDUCTOR, alert_late_run, run)


def load_late(session: Session) -> list[str]:
    """Return the active runs that will miss their deadline and were not alerted about."""
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.RUNNING.value)
    )
    return [
        run.id
        for run, experiment in session.execute(query)
        if any(row.get("metric") == Metric.FORECAST_S for row in (run.order or {}).get("gate", ()))
        and not was_told(session, run.experiment, run.id, LATE.value)
        and _late_text(session, experiment, run) is not None
    ]


def _late_text(session: Session, experiment: ExperimentRow, run: RunRow) -> str | None:
    """Return the text about a run that will be late; None if it will not."""
    phases, runs = phases_of(session, experiment.id), runs_of(session, experiment.id)
    found = load_forecast(session, experiment, phases, runs)
    if not found.late or found.deadline_s is None or found.step_s is None:
        return None
    return (
        f"{experiment.name}, {run.phase}: at {found.step_s:.3g} s a step the plan's deadline of"
        f" {found.deadline_s:g} s for what comes after this phase cannot be met"
    )


def alert_late_run(deed: Deed, run: str) -> None:
    """Alert about a run that will be late, unless that was done, or it has ended, since."""
    experiment, row = lock_run(deed, run)
    if row.state != RunState.RUNNING or was_told(deed.session, row.experiment, run, LATE.value):
        return
    text = _late_text(deed.session, experiment, row)
    if text is None:
        return
    record_event(deed, experiment, LATE.value, run=row.id, phase=row.phase, text=text)
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

    Args:
        session: of a transaction that writes.
        now: Unix seconds.
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
