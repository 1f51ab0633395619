"""Does a transaction hold or fail as a whole, side by side with others?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt
from service.db.migrate import current_revision, migrate
from service.db.schema import KeyRow, Table
from service.db.store import Store, build_engine


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    migrate(database_url)
    opened = Store(database_url)
    yield opened
    opened.close()


def add_key(session: Session, name: str) -> str:
    session.add(KeyRow(id=name, name=name, role="viewer", hash=name, created_at=0.0))
    return name


def test_a_failing_transaction_leaves_nothing_and_harms_no_other(store: Store) -> None:
    store.write(lambda session: add_key(session, "same"))

    def write(number: int) -> str:
        name = "same" if number % 3 == 0 else f"k{number}"
        try:
            return store.write(lambda session: add_key(session, name))
        except IntegrityError:
            return "refused"

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(write, range(60)))
    assert answers.count("refused") == 20
    names = store.read(lambda session: set(session.scalars(select(KeyRow.name))))
    assert names == {"same", *(f"k{n}" for n in range(60) if n % 3)}


def test_read_modify_write_loses_nothing(store: Store) -> None:
    store.write(lambda session: add_key(session, "counter"))

    def count(session: Session) -> None:
        row = session.scalars(select(KeyRow).with_for_update()).one()
        row.created_at += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.write(count), range(100)))
    assert store.read(lambda session: session.scalars(select(KeyRow.created_at)).one()) == 100


def test_what_was_written_is_there_after_a_reopening(database_url: str) -> None:
    migrate(database_url)
    store = Store(database_url)
    store.write(lambda session: add_key(session, "kept"))
    store.close()
    again = Store(database_url)
    assert again.read(lambda session: session.get_one(KeyRow, "kept").name) == "kept"
    again.close()


def test_migrations_build_what_the_models_say(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    found, newest = current_revision(empty_url)
    assert found == newest
    engine = build_engine(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
    engine.dispose()


def test_a_database_whose_references_do_not_hold_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/broken.db"
    migrate(url)
    engine = build_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.exec_driver_sql("BEGIN")
        connection.execute(
            text("INSERT INTO offsets (run, file, bytes) VALUES ('run_none', 'rank0', 1)")
        )
    engine.dispose()
    with pytest.raises(Corrupt):
        migrate(url)
