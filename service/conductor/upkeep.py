"""What must be tidied? The global cursor, missing decision files, old idempotency keys."""

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.context import Context
from service.db.schema import EventRow, IdempotencyRow
from service.experiments.decisions import save_missing
from service.http.idempotency import KEPT_S

_BATCH = 1_000


def assign_cursors(session: Session) -> int:
    """Give committed events their place in the order of all; return how many got one.

    By time, and those of one experiment by `seq` whatever their times say: a writer reads the
    clock before it waits for the experiment's lock.
    Only the one conductor does this, after the commit, so a reader that has seen a cursor never
    finds a smaller one later.
    """
    due = func.max(EventRow.at).over(partition_by=EventRow.experiment, order_by=EventRow.seq)
    query = select(EventRow).where(EventRow.cursor.is_(None)).limit(_BATCH)
    rows = session.scalars(query.order_by(due, EventRow.experiment, EventRow.seq)).all()
    if not rows:
        return 0
    last = session.scalars(select(func.max(EventRow.cursor))).one() or 0
    for number, row in enumerate(rows, start=last + 1):
        row.cursor = number
    return len(rows)


def count_waiting(session: Session) -> int:
    """Return how many events have no cursor yet."""
    query = select(func.count()).select_from(EventRow).where(EventRow.cursor.is_(None))
    return session.scalars(query).one()


class Cursors:
    """Gives events their cursor."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Give every committed event its cursor."""
        store = self._context.store
        while store.read(count_waiting) and not self._context.closing.is_set():
            store.write(assign_cursors)


class Upkeep:
    """Tidies up."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Write missing decision files; forget idempotency keys of yesterday."""
        context = self._context
        context.store.read(lambda session: save_missing(context.settings.decisions, session))
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
