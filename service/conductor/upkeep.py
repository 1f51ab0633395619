"""What must be tidied? The cursor of all, missing decision files, old keys, who answers here.

The files of decisions are each home's own: whoever conducts, every service writes those that its
home lacks.
"""

from functools import partial

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.context import Context
from service.db.schema import EventRow, IdempotencyRow
from service.experiments.decisions import save_missing
from service.http.idempotency import KEPT_S

FILES_S = 30.0
"""How often a service looks which files of decisions its home lacks."""
_BATCH = 1_000


def assign_cursors(session: Session, now: float) -> int:
    """Give committed events their place in the order of all; return how many got one.

    By time, and those of one experiment by `seq` whatever their times say: a writer reads the
    clock before it waits for the experiment's lock.
    Only the one conductor does this, after the commit, so a reader that has seen a cursor never
    finds a smaller one later. They grow with every millisecond, too: a database that lost its last
    events (it was restored, or a fail-over) gives out none of theirs.

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


def has_waiting(session: Session) -> bool:
    """Say whether an event has no cursor yet."""
    query = select(EventRow.id).where(EventRow.cursor.is_(None)).limit(1)
    return session.scalars(query).first() is not None


class Cursors:
    """Gives events their cursor."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Give every committed event its cursor."""
        store = self._context.store
        while store.read(has_waiting) and not self._context.closing.is_set():
            store.write(partial(assign_cursors, now=self._context.now()))


class DecisionFiles:
    """Writes the files of decisions that the home lacks, whoever made them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Write every decision's file that is missing."""
        folder = self._context.settings.decisions
        self._context.store.read(lambda session: save_missing(folder, session))


class Upkeep:
    """Tidies up."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Forget idempotency keys of yesterday."""
        context = self._context
        old = context.now() - KEPT_S
        if context.store.read(lambda session: _has_old(session, old)):
            context.store.write(
                lambda session: (
                    session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < old))
                    and None
                )
            )


def _has_old(session: Session, old: float) -> bool:
    query = select(IdempotencyRow.key).where(IdempotencyRow.created_at < old).limit(1)
    return session.scalars(query).first() is not None
