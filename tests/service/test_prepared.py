"""Does a prepared statement say and find what the same Core statement would?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from sqlalchemy import Table, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db.prepared import Prepared
from service.db.schema import ExperimentRow, KeyRow
from service.db.store import Store, tables_of
from tests.service.test_insert import rows

EXPERIMENTS, KEYS = (cast(Table, row.__table__) for row in (ExperimentRow, KeyRow))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def key(name: str) -> dict[str, Any]:
    return {"id": name, "name": name, "role": "viewer", "hash": name, "created_at": 1.25}


def test_every_column_is_read_as_by_the_statement_itself(store: Store) -> None:
    """Enums, models, JSON, floats and None, on each database."""
    experiment, _ = rows()
    whole = select(*EXPERIMENTS.c).where(EXPERIMENTS.c.id == bindparam("of"))
    prepared = Prepared(whole)
    store.write(lambda session: session.add(experiment))
    said = {"of": experiment.id}
    found = store.read(lambda session: prepared.first(session.connection(), said))
    assert found == tuple(
        store.read(lambda session: session.connection().execute(whole, said)).one()
    )
    assert store.read(lambda session: prepared.first(session.connection(), {"of": "none"})) is None


def test_it_takes_other_names_at_each_execution_and_many_rows_at_once(store: Store) -> None:
    new, change = Prepared(insert(KEYS)), Prepared(update(KEYS).where(KEYS.c.id == bindparam("of")))

    def work(session: Session) -> None:
        new.run(tables_of(session), key("a"), key("b"))
        new.run(tables_of(session), key("c") | {"revoked_at": 2.5})
        change.run(tables_of(session), {"of": "a", "name": "é %s :x"})
        change.run(tables_of(session), {"of": "b", "revoked_at": 3.5, "worker": None})

    store.write(work)
    query = select(KeyRow.name, KeyRow.revoked_at).order_by(KeyRow.id)
    assert store.read(lambda session: [tuple(row) for row in session.execute(query)]) == [
        ("é %s :x", None), ("b", 3.5), ("c", 2.5),
    ]  # fmt: skip


def test_its_errors_are_those_of_the_library_and_undo_the_transaction(store: Store) -> None:
    new = Prepared(insert(KEYS))

    def work(session: Session) -> None:
        new.run(tables_of(session), key("same"))
        new.run(tables_of(session), key("same"))

    with pytest.raises(IntegrityError):
        store.write(work)
    assert store.read(lambda session: session.scalars(select(KeyRow.id)).all()) == []


def test_one_of_a_group_that_fails_takes_back_its_own_statements_alone(store: Store) -> None:
    """Side by side with others a transaction has a savepoint before its first statement."""
    from concurrent.futures import ThreadPoolExecutor

    new = Prepared(insert(KEYS))

    def write(number: int) -> None:
        def work(session: Session) -> None:
            new.run(tables_of(session), key(f"k{number}"))
            if number % 3 == 0:
                raise KeyError(number)

        try:
            store.write(work)
        except KeyError:
            pass

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(60)))
    kept = store.read(lambda session: set(session.scalars(select(KeyRow.id))))
    assert kept == {f"k{n}" for n in range(60) if n % 3}


def test_a_column_with_a_default_of_its_own_has_to_be_said(store: Store) -> None:
    new = Prepared(insert(EXPERIMENTS))
    with pytest.raises(AssertionError, match="event_seq"):
        store.write(lambda session: new.run(tables_of(session), {"id": "exp_x", "name": "x"}))
