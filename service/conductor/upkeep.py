"""Small passes of the conductor: approvals, campaigns, cursors, files."""

from functools import partial

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from gonogo.contract.errors import Unavailable
from service.campaigns import advance, load_running
from service.context import Context
from service.db.schema import EventRow, IdempotencyRow
from service.experiments.decisions import expire_approval, save_missing
from service.experiments.lifecycle import CONDUCTOR
from service.experiments.state import is_expired
from service.http.dependencies import KEPT_S
from service.queries.experiments import load_awaiting

FILES_S = 30.0
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
