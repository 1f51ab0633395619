"""Are rows that are inserted by Core statements those that the unit of work would have written?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine, event, select
from sqlalchemy.orm import Session

from gonogo.contract.ids import Kind, new_id
from service.db.insert import insert_added, is_stored
from service.db.schema import ExperimentRow, PhaseRow, Table
from tests.service.conftest import Plane


def rows() -> tuple[ExperimentRow, PhaseRow]:
    """An experiment and its phase, with no word of what has a default or may be null."""
    experiment = ExperimentRow(
        id=new_id(Kind.EXPERIMENT), name="é", plan="demo", resolved={"a": [1]}, labels={},
        state="queued", created_by="me", created_at=1.5, frozen={},
    )  # fmt: skip
    phase = PhaseRow(experiment=experiment.id, name="sanity", position=0, steps=1, state="pending")
    return experiment, phase


def insert_all(session: Session, added: Sequence[Table]) -> None:
    session.add_all(added)
    insert_added(session)


def columns(row: Table) -> dict[str, object]:
    return {column.key: getattr(row, column.key) for column in row.__table__.columns}


def test_they_are_read_as_those_of_the_unit_of_work(plane: Plane) -> None:
    ours, theirs = rows(), rows()
    store = plane.context.store
    store.write(lambda session: insert_all(session, ours[::-1]))  # what is referred to comes first
    store.write(lambda session: session.add_all(theirs[:1]))
    store.write(lambda session: session.add_all(theirs[1:]))

    def read(row: Table) -> dict[str, object]:
        key = [getattr(row, column.key) for column in row.__table__.primary_key]
        return columns(store.read(lambda session: session.get_one(type(row), tuple(key))))

    for mine, other in zip(ours, theirs, strict=True):
        named = {"id": None, "experiment": None}
        assert read(mine) | named == read(other) | named
        assert read(mine) == columns(mine)  # as they are in hand, without asking again


def test_they_belong_to_the_session_and_a_change_of_theirs_is_written(plane: Plane) -> None:
    experiment, phase = rows()
    assert not is_stored(experiment)

    def work(session: Session) -> None:
        session.add_all([experiment, phase])
        assert not is_stored(phase)
        insert_added(session)
        assert is_stored(phase)
        assert not session.new
        experiment.event_seq += 1

    plane.context.store.write(work)
    query = select(ExperimentRow.event_seq).where(ExperimentRow.id == experiment.id)
    assert plane.context.store.read(lambda session: session.scalars(query).one()) == 1


def test_a_submission_is_inserted_whole_and_nothing_of_it_is_updated(plane: Plane) -> None:
    told: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        told.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        plane.submit()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    units = ("INSERT INTO events", "INSERT INTO runs", "UPDATE experiments")
    assert not [text for text in told if text.startswith(units)]
