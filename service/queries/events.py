"""Events: of one experiment by `seq`, of all by a cursor that never changes."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.schema import EventRow, ExperimentRow
from service.queries.page import load_page


def load_events(
    session: Session, experiment: str, *, after: int = 0, limit: int | None = None
) -> Sequence[EventRow]:
    """Return the events of an experiment beyond number `after`, oldest first."""
    query = select(EventRow).where(EventRow.experiment == experiment, EventRow.seq > after)
    return session.scalars(query.order_by(EventRow.seq).limit(limit)).all()


def load_events_page(
    session: Session, *, limit: int, after: int
) -> tuple[Sequence[EventRow], str | None]:
    """Return a page of the events of all experiments, in their one order."""
    query = select(EventRow)
    return load_page(session, query, EventRow.cursor, limit=limit, after=after)


def load_last_seqs(session: Session, experiments: Sequence[str]) -> dict[str, int]:
    """Return experiment → number of its last event."""
    query = select(ExperimentRow.id, ExperimentRow.event_seq)
    rows = session.execute(query.where(ExperimentRow.id.in_(experiments)))
    return {name: number for name, number in rows}


def was_told(session: Session, experiment: str, run: str, kind: str) -> bool:
    """Say whether an event of this kind stands about a run."""
    query = select(EventRow.id).where(
        EventRow.experiment == experiment, EventRow.type == kind, EventRow.run == run
    )
    return session.scalars(query.limit(1)).first() is not None
