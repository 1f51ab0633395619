"""Workers, each as its last claim described it."""

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.schema import WorkerRow
from service.queries.page import load_page


def load_workers(session: Session) -> Sequence[WorkerRow]:
    """Return every worker that ever claimed, the one heard of last first."""
    return session.scalars(select(WorkerRow).order_by(WorkerRow.seen_at.desc())).all()


def load_workers_named(session: Session, names: Collection[str]) -> Sequence[WorkerRow]:
    """Return the workers of these names."""
    if not names:
        return ()
    return session.scalars(select(WorkerRow).where(WorkerRow.name.in_(names))).all()


def load_workers_page(
    session: Session, *, limit: int, after: str | None
) -> tuple[Sequence[WorkerRow], str | None]:
    """Return a page of the workers by name."""
    return load_page(session, select(WorkerRow), WorkerRow.name, limit=limit, after=after)
