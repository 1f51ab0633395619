"""Does a transaction hold or fail as a whole, side by side with others?"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gonogo.contract.errors import Unavailable
from service.db.columns import Table
from service.db.schema import KeyRow
from service.db.store import (
    Store,
    Topic,
    build_config,
    build_engine,
    current_revision,
    migrate,
    ring,
)
from tests.servers import wait_until


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def add_key(session: Session, name: str) -> str:
    session.add(KeyRow(id=name, name=name, role="viewer", hash=name, created_at=0.0))
    return name


@contextmanager
def writer_held(store: Store, pool: ThreadPoolExecutor) -> Iterator[Future[None]]:
    """Keep a store's writer busy for the body; yields the write that does."""
    go_on, held = threading.Event(), threading.Event()

    def wait(session: Session) -> None:
        held.set()
        assert go_on.wait(60)

    write = pool.submit(store.write, wait)
    assert held.wait(60)
    try:
        yield write
    finally:
        go_on.set()


def wait_for(store: Store, waiting: int) -> None:
    """Wait until so many writes stand in the queue, or more."""
    wait_until(lambda: store.waiting >= waiting, what=f"the {waiting}th write in the queue")


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


def test_what_is_committed_is_on_the_disk_and_nothing_waits_for_ever(store: Store) -> None:
    """Power may fail after an answer; a statement, a lock or a transaction may hang."""

    def ask(session: Session) -> list[str]:
        if store.sqlite:
            return [str(session.execute(text(f"PRAGMA {name}")).scalar()) for name in PRAGMAS]
        return [str(session.execute(text(f"SHOW {name}")).scalar()) for name in LIMITS]

    for said in (store.write(ask), store.read(ask)):
        if store.sqlite:
            assert said == list(PRAGMAS.values())
        else:
            assert all(limit not in ("0", "") for limit in said)


PRAGMAS = {"synchronous": "2", "foreign_keys": "1", "journal_mode": "wal"}
"""2 is FULL: a commit is synced."""
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@pytest.mark.parametrize("failing", [{0}, {2}, {4}, {1, 3}, set(range(5))])
def test_of_a_group_each_is_kept_once_or_fails_by_itself(tmp_path: Path, failing: set[int]) -> None:
    url = f"sqlite:///{tmp_path}/group.db"
    migrate(url)
    store = Store(url)

    def count_up(session: Session, number: int) -> int:
        row = session.scalars(select(KeyRow).where(KeyRow.name == "counter")).one()
        row.created_at += 1
        add_key(session, str(number))
        session.flush()
        if number in failing:
            raise KeyError(number)
        return number

    store.write(lambda session: add_key(session, "counter"))
    began = store.read(lambda session: session.scalars(select(KeyRow.created_at)).one())
    with ThreadPoolExecutor(6) as pool:
        told = []
        with writer_held(store, pool) as first:
            for number in range(5):
                told.append(pool.submit(store.write, partial(count_up, number=number)))
                wait_for(store, number + 1)
        first.result(60)
        errors = [future.exception(60) for future in told]
    assert {n for n, error in enumerate(errors) if error is not None} == failing
    assert all(isinstance(error, KeyError) for error in errors if error is not None)
    rows = store.read(
        lambda session: {row.name: row.created_at for row in session.scalars(select(KeyRow))}
    )
    assert rows.keys() - {"counter"} == {str(n) for n in range(5) if n not in failing}
    assert rows["counter"] == began + 5 - len(failing)
    store.close()


def test_read_modify_write_loses_nothing(store: Store) -> None:
    store.write(lambda session: add_key(session, "counter"))

    def count(session: Session) -> None:
        row = session.scalars(select(KeyRow).with_for_update()).one()
        row.created_at += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.write(count), range(100)))
    assert store.read(lambda session: session.scalars(select(KeyRow.created_at)).one()) == 100


def test_what_was_written_is_there_after_a_reopening(database_url: str) -> None:
    store = Store(database_url)
    store.write(lambda session: add_key(session, "kept"))
    store.close()
    again = Store(database_url)
    assert again.read(lambda session: session.get_one(KeyRow, "kept").name) == "kept"
    again.close()


def test_a_commit_tells_only_what_was_rung_for(database_url: str) -> None:
    told: list[frozenset[Topic]] = []
    store = Store(database_url, after_commit=told.append)

    def fail(session: Session) -> None:
        ring(session, Topic.ALERTS)
        raise ValueError

    try:
        store.write(lambda session: add_key(session, "quiet"))
        with pytest.raises(ValueError):
            store.write(fail)
        store.write(lambda session: ring(session, Topic.ENDED))
    finally:
        store.close()
    assert told == [{Topic.ENDED}]


def test_migrations_build_what_the_models_say(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    found, newest = current_revision(empty_url)
    assert found == newest == ScriptDirectory.from_config(build_config()).get_current_head()
    engine = build_engine(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
    engine.dispose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting takes root and a kernel that lets it")
    yield folder
    subprocess.run(("umount", "--lazy", str(folder)), check=True)


def test_no_write_is_acknowledged_that_a_full_disk_lost(small_disk: Path) -> None:
    """The disk fills up under many writers; acknowledged writes are there afterwards."""
    url = f"sqlite:///{small_disk}/gonogo.db"
    migrate(url)
    store = Store(url)

    def add(number: int) -> str | None:
        name = f"{number}-{'x' * 4000}"
        row = KeyRow(id=str(number), name=name, role="viewer", hash=str(number), created_at=0)
        try:
            store.write(lambda session: session.add(row))
        except Unavailable:
            return None
        return name

    def kept(opened: Store) -> set[str]:
        return opened.read(lambda session: set(session.scalars(select(KeyRow.name))))

    with ThreadPoolExecutor(16) as pool:
        said = {name for name in pool.map(add, range(1500)) if name is not None}
    assert 0 < len(said) < 1500
    there = kept(store)
    assert said <= there
    store.close()
    again = Store(url)
    assert kept(again) == there
    again.close()
    subprocess.run(("mount", "-o", "remount,size=16m", str(small_disk)), check=True)
    roomy = Store(url)
    assert roomy.write(lambda session: add_key(session, "later")) == "later"
    assert kept(roomy) == {*there, "later"}
    roomy.close()


def test_the_writer_outlives_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    store = Store(url)
    broken = iter([True, False])

    def begin() -> object:
        if next(broken):
            raise RuntimeError("no memory")
        return real()

    real = store._writers.begin
    monkeypatch.setattr(store._writers, "begin", begin)
    with pytest.raises(RuntimeError):
        store.write(lambda session: add_key(session, "one"))
    assert store.write(lambda session: add_key(session, "two")) == "two"
    store.close()


def test_a_write_that_nobody_awaits_any_more_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.db.store._PATIENCE_S", 0.05)
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    store = Store(url)
    with ThreadPoolExecutor(2) as pool:
        with writer_held(store, pool) as slow:
            with pytest.raises(Unavailable, match="overloaded"):
                store.write(lambda session: add_key(session, "given up"))
            assert not store.can_write(0.01)
        with pytest.raises(Unavailable):
            slow.result(60)
    assert store.can_write(60)
    assert not store.read(lambda session: list(session.scalars(select(KeyRow.name))))
    store.close()


def test_too_many_writers_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.db.store._QUEUE", 2)
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    store = Store(url)
    with ThreadPoolExecutor(4) as pool:
        with writer_held(store, pool) as first:
            writes = []
            for number in (1, 2):
                writes.append(pool.submit(store.write, partial(add_key, name=f"k{number}")))
                wait_for(store, number)
            with pytest.raises(Unavailable, match="2 writes wait"):
                store.write(lambda session: None)
        for write in (first, *writes):
            write.result(60)
    store.close()
