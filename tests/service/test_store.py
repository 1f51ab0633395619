"""Does a transaction hold or fail as a whole, side by side with others?"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, select, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from gonogo.contract.errors import Unavailable
from service.db import store as db_store
from service.db.engine import NEARBY, build_engine
from service.db.migrate import _connecting, build_config, current_revision, migrate
from service.db.schema import EpochRow, KeyRow, Table
from service.db.store import Store, Topic, ring
from tests.servers import wait_until


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def add_key(session: Session, name: str) -> str:
    session.add(KeyRow(id=name, name=name, role="viewer", hash=name, created_at=0.0))
    return name


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Store, list[frozenset[Topic]]]]:
    """A store on SQLite, and what was rung for."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shared')}/gonogo.db"
    migrate(url)
    rung: list[frozenset[Topic]] = []
    opened = Store(url, after_commit=rung.append)
    yield opened, rung
    opened.close()


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


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_nothing_is_written_to_a_database_that_was_moved(tmp_path: Path, instead: str) -> None:
    path = tmp_path / "gonogo.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        assert store.can_write(60)
        path.rename(tmp_path / "kept.db")
        if instead == "another":
            path.write_bytes((tmp_path / "kept.db").read_bytes())
        with pytest.raises(Unavailable, match="moved, removed or replaced"):
            store.write(lambda session: add_key(session, "lost"))
        assert not store.can_write(60)
        path.unlink(missing_ok=True)
        (tmp_path / "kept.db").rename(path)
        store.write(lambda session: add_key(session, "after"))
        names = store.read(lambda session: set(session.scalars(select(KeyRow.name))))
    finally:
        store.close()
    assert names == {"before", "after"}


@pytest.mark.parametrize("seen", ["by a write", "at the end"])
def test_a_database_that_is_replaced_in_place_is_written_to_no_more(
    tmp_path: Path, seen: str
) -> None:
    """`cp older.db gonogo.db`: who submitted since was told of nothing, and it was a mixture."""
    path = tmp_path / "gonogo.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        checkpoint(path)
        older = content_of(path)
        store.write(lambda session: add_key(session, "since"))
        checkpoint(path)
        store.write(lambda session: session.add(EpochRow(id=7, n=1)))
        overwrite(path, older)
        if seen == "by a write":
            for _ in range(2):
                with pytest.raises(Unavailable, match="was replaced while the service runs"):
                    store.write(lambda session: add_key(session, "lost"))
            assert not store.can_write(60)
    finally:
        store.close()
    assert Path(f"{path}-wal.aside").stat().st_size > 0
    assert read_keys(path) == {"before"}


def test_a_write_that_is_committed_while_a_database_is_replaced_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gonogo.db"
    migrate(f"sqlite:///{path}")
    older = content_of(path)
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        checkpoint(path)

        def replace(session: Session) -> None:
            add_key(session, "lost")
            overwrite(path, older)

        with pytest.raises(Unavailable, match="was replaced while the service runs"):
            store.write(replace)
    finally:
        store.close()
    assert read_keys(path) == set()


def test_a_copy_of_what_is_in_the_file_loses_nothing(tmp_path: Path) -> None:
    """All that was committed since lies in the log."""
    path = tmp_path / "gonogo.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        checkpoint(path)
        older = content_of(path)
        store.write(lambda session: add_key(session, "since"))
        overwrite(path, older)
        store.write(lambda session: add_key(session, "after"))
    finally:
        store.close()
    assert read_keys(path) == {"before", "since", "after"}


@pytest.mark.parametrize("what", ["touched", "another's checkpoint", "another's writes"])
def test_a_database_that_others_use_goes_on(tmp_path: Path, what: str) -> None:
    path = tmp_path / "gonogo.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    other = Store(f"sqlite:///{path}")
    try:
        for name in ("first", "second"):
            store.write(lambda session, name=name: add_key(session, name))
            if what == "touched":
                path.touch()
            elif what == "another's writes":
                other.write(lambda session, name=name: add_key(session, f"another {name}"))
            checkpoint(path)
        store.write(lambda session: add_key(session, "third"))
    finally:
        store.close()
        other.close()
    assert read_keys(path) >= {"first", "second", "third"}
    assert not Path(f"{path}-wal.aside").exists()


@pytest.mark.parametrize("how", ["cp", "cp -p", "truncate", "restore", "of another"])
def test_a_database_that_is_replaced_before_anybody_looked_is_written_to_no_more(
    tmp_path: Path, how: str
) -> None:
    """Another had just played the log in: the copy had counted as far as the writer knew of."""
    path, older = tmp_path / "gonogo.db", tmp_path / "older.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    if how == "of another":
        migrate(f"sqlite:///{older}")
        with closing(sqlite3.connect(older)) as other:
            other.execute("PRAGMA user_version = 1000")
    try:
        store.write(lambda session: add_key(session, "before"))
        checkpoint(path)
        if how != "of another":
            subprocess.run(["cp", "-p", str(path), str(older)], check=True)
        store.write(lambda session: add_key(session, "since"))
        if how == "restore":
            with closing(sqlite3.connect(older)) as kept, closing(sqlite3.connect(path)) as here:
                kept.backup(here)
        else:
            if how != "of another":
                checkpoint(path)
            command = {"truncate": ["truncate", "-s", "0"], "cp -p": ["cp", "-p", str(older)]}
            subprocess.run([*command.get(how, ["cp", str(older)]), str(path)], check=True)
        for _ in range(2):
            with pytest.raises(Unavailable, match="was replaced while the service runs"):
                store.write(lambda session: add_key(session, "lost"))
        with pytest.raises(Unavailable):
            store.read(lambda session: list(session.scalars(select(KeyRow.name))))
    finally:
        store.close()
    aside = Path(f"{path}-wal.aside")
    if how != "restore":
        assert aside.stat().st_mode & 0o077 == 0
    if how == "truncate":
        with pytest.raises(Unavailable, match="gone or empty"):
            current_revision(f"sqlite:///{path}")
    else:
        assert read_keys(path) == ({"before"} if how != "of another" else set())


def test_a_copy_that_is_laid_out_otherwise_and_lacks_nothing_is_taken(tmp_path: Path) -> None:
    """The connections that were there wrote their pages of before into it."""
    path, copy = tmp_path / "gonogo.db", tmp_path / "copy.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        for n in range(300):
            store.write(lambda session, n=n: add_key(session, f"{n * 37 % 300}"))
        store.write(lambda session: session.execute(delete(KeyRow).where(KeyRow.name != "7")))
        checkpoint(path)
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"VACUUM INTO '{copy}'")
        subprocess.run(["cp", str(copy), str(path)], check=True)
        store.write(lambda session: add_key(session, "after"))
        assert store.read(lambda session: set(session.scalars(select(KeyRow.name)))) == {
            "7",
            "after",
        }
    finally:
        store.close()
    assert read_keys(path) == {"7", "after"}


@pytest.mark.parametrize("how", ["emptied", "cut short", "an older one"])
@pytest.mark.parametrize("seen", ["by a write", "at the end"])
def test_a_log_that_is_emptied_or_written_over_is_written_to_no_more(
    tmp_path: Path, how: str, seen: str
) -> None:
    """`> gonogo.db-wal`: what was acknowledged since was played into nothing, or a mixture."""
    path, log = tmp_path / "gonogo.db", tmp_path / "gonogo.db-wal"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        checkpoint(path)
        older = content_of(log)
        for n in range(20):
            store.write(lambda session, n=n: add_key(session, f"since {n}"))
        size = {"emptied": 0, "cut short": log.stat().st_size // 2}.get(how)
        if size is None:
            overwrite(log, older)
        else:
            os.truncate(log, size)
        for _ in range(2 if seen == "by a write" else 0):
            with pytest.raises(Unavailable, match="was replaced while the service runs"):
                store.write(lambda session: add_key(session, "lost"))
    finally:
        store.close()
    assert read_keys(path) == {"before"}


@pytest.mark.parametrize("since", ["begun anew", "longer"])
def test_a_log_that_is_put_there_with_the_copy_is_played_into_it(
    tmp_path: Path, since: str
) -> None:
    """`cp backup/gonogo.db* .`: the copy's own log was put aside, and the copy lacked it."""
    path, log = tmp_path / "gonogo.db", tmp_path / "gonogo.db-wal"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        copy = content_of(path), content_of(log)
        if since == "begun anew":
            store.write(lambda session: add_key(session, "since"))
            checkpoint(path)
        for name in ("later", "last"):
            store.write(lambda session, name=name: add_key(session, name))
        for place, content in zip((path, log), copy, strict=True):
            overwrite(place, content)
        with pytest.raises(Unavailable, match="was replaced while the service runs"):
            store.write(lambda session: add_key(session, "lost"))
    finally:
        store.close()
    assert read_keys(path) == {"before"}


def content_of(path: Path) -> bytes:
    """Read a file in a process of its own: who closes it lets go of SQLite's locks."""
    return subprocess.run(["cat", str(path)], capture_output=True, check=True).stdout


def overwrite(path: Path, content: bytes) -> None:
    """Do what `cp` does, in a process of its own as well."""
    subprocess.run(["tee", str(path)], input=content, stdout=subprocess.DEVNULL, check=True)


def read_keys(path: Path) -> set[str]:
    """Return what a service that starts next finds."""
    again = Store(f"sqlite:///{path}")
    try:
        whole = again.read(lambda session: session.scalar(text("PRAGMA integrity_check")))
        assert whole == "ok"
        return again.read(lambda session: set(session.scalars(select(KeyRow.name))))
    finally:
        again.close()


def checkpoint(path: Path) -> None:
    """Play the log into the file, as another process does that has it open."""
    with closing(sqlite3.connect(path)) as other:
        busy, *_ = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert not busy


@pytest.mark.parametrize("what", ["-wal", "-wal -shm", "another"])
def test_a_log_that_is_removed_under_a_service_costs_nothing(tmp_path: Path, what: str) -> None:
    """What was acknowledged before and after it is there when the service was killed."""
    path, kept = tmp_path / "gonogo.db", tmp_path / "kept.db"
    migrate(f"sqlite:///{path}")
    store = Store(f"sqlite:///{path}")
    try:
        store.write(lambda session: add_key(session, "before"))
        store.read(lambda session: session.scalars(select(KeyRow.name)).all())
        for end in what.split() if what != "another" else ("-wal",):
            Path(f"{path}{end}").unlink()
        if what == "another":
            Path(f"{path}-wal").write_bytes(b"")
        for name in ("after", "later"):
            store.write(lambda session, name=name: add_key(session, name))
        names = store.read(lambda session: set(session.scalars(select(KeyRow.name))))
        for end in ("", "-wal"):  # what a kill leaves
            Path(f"{kept}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    finally:
        store.close()
    again = Store(f"sqlite:///{kept}")
    found = again.read(lambda session: set(session.scalars(select(KeyRow.name))))
    again.close()
    assert names == found == {"before", "after", "later"}


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_who_reads_while_a_database_is_moved_costs_none_of_its_log(
    tmp_path: Path, instead: str
) -> None:
    path, kept = tmp_path / "gonogo.db", tmp_path / "kept.db"
    url = f"sqlite:///{path}"
    migrate(url)
    store = Store(url)
    try:
        store.write(lambda session: add_key(session, "acknowledged"))
        path.rename(kept)  # what was just written is in the log, which stays
        if instead == "another":
            migrate(f"sqlite:///{tmp_path}/other.db")
            (tmp_path / "other.db").rename(path)
        with pytest.raises(Unavailable):
            store.read(lambda session: session.scalars(select(KeyRow.name)).all())
        assert instead == "another" or not path.exists()
        kept.rename(path)
    finally:
        store.close()
    again = Store(url)
    try:
        names = again.read(lambda session: set(session.scalars(select(KeyRow.name))))
    finally:
        again.close()
    assert names == {"acknowledged"}


def test_no_new_database_takes_the_log_of_one_that_is_gone(tmp_path: Path) -> None:
    path, log = tmp_path / "gonogo.db", tmp_path / "gonogo.db-wal"
    url = f"sqlite:///{path}"
    log.write_bytes(b"")
    migrate(url)  # an empty log holds nothing
    path.rename(tmp_path / "kept.db")
    log.write_bytes(b"frames")
    for empty in (False, True):
        if empty:
            path.touch()
        with pytest.raises(Unavailable, match="put the database back, or move its log away"):
            migrate(url)
    assert log.read_bytes() == b"frames"
    (tmp_path / "kept.db").rename(path)
    assert current_revision(url) == (current_revision(url)[1],) * 2


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


def test_a_write_alone_in_its_group_leaves_nothing_where_any_of_it_failed(store: Store) -> None:
    store.write(lambda session: add_key(session, "same"))

    def fail(session: Session, name: str, then: Callable[[Session], object]) -> None:
        add_key(session, name)
        session.flush()
        then(session)

    def ask_amiss(session: Session) -> object:
        """Fail in a way that leaves SQLite's transaction open: an OperationalError of a query."""
        return session.execute(text("INSERT INTO nowhere VALUES (1)"))

    def stop(session: Session) -> object:
        raise KeyError(session)

    for told, then in (
        ((Unavailable, ProgrammingError), ask_amiss),
        (IntegrityError, lambda session: add_key(session, "same")),
        (KeyError, stop),
    ):
        with pytest.raises(told):
            store.write(partial(fail, name="half", then=then))
        kept = store.write(lambda session: list(session.scalars(select(KeyRow.name))))
        assert kept == ["same"]


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


class Deeds(StrEnum):
    """What a write of a group does, each after it has added a row."""

    HOLDS = "holds"
    RAISES = "raises"
    ASKS_AMISS = "asks amiss"
    """Fails in SQLite, whose transaction stays open."""
    BREAKS_A_RULE = "breaks a rule"
    FAILS_OTHERWISE_AGAIN = "fails otherwise again"
    FAILS_ONCE = "fails once"
    FAILS_AT_LAST = "fails at last"
    """Only where it runs again."""
    IS_GIVEN_UP = "is given up"
    """Nobody waits for it any more when its turn comes."""
    FILLS_THE_DISK = "fills the disk"
    FILLS_IT_AT_LAST = "fills the disk at last"
    """Only where it runs again."""


FAILS_FIRST = {
    Deeds.RAISES: KeyError,
    Deeds.ASKS_AMISS: OperationalError,
    Deeds.BREAKS_A_RULE: IntegrityError,
    Deeds.FAILS_OTHERWISE_AGAIN: KeyError,
    Deeds.FAILS_ONCE: KeyError,
}
FAILS_AGAIN = {
    **FAILS_FIRST,
    Deeds.FAILS_OTHERWISE_AGAIN: IntegrityError,
    Deeds.FAILS_AT_LAST: KeyError,
}
del FAILS_AGAIN[Deeds.FAILS_ONCE]


def outcomes(deeds: list[Deeds]) -> list[type[BaseException] | None]:
    """Say what becomes of each write of a group: None where it holds."""
    begun = [deed for deed in deeds if deed is not Deeds.IS_GIVEN_UP]
    first = next((deed for deed in begun if deed in {*FAILS_FIRST, Deeds.FILLS_THE_DISK}), None)
    again = first in FAILS_FIRST and len(begun) > 1
    told: dict[Deeds, type[BaseException]] = {Deeds.IS_GIVEN_UP: CancelledError}
    if first in FAILS_FIRST:
        told |= FAILS_AGAIN if again else FAILS_FIRST
    full = {Deeds.FILLS_THE_DISK, *((Deeds.FILLS_IT_AT_LAST,) if again else ())}
    lost = next((at for at, deed in enumerate(deeds) if deed in full), None)
    return [
        Unavailable
        if lost is not None and deed is not Deeds.IS_GIVEN_UP and (at > lost or deed not in told)
        else told.get(deed)
        for at, deed in enumerate(deeds)
    ]


def do(deed: Deeds, session: Session, *, again: bool) -> None:
    """Do what a write does after it has added a row."""
    if deed is Deeds.ASKS_AMISS:
        session.execute(text("INSERT INTO nowhere VALUES (1)"))
    if deed is Deeds.BREAKS_A_RULE or (deed is Deeds.FAILS_OTHERWISE_AGAIN and again):
        add_key(session, "there already")
        session.flush()
    if deed in (
        *(Deeds.RAISES, Deeds.FAILS_OTHERWISE_AGAIN),
        Deeds.FAILS_AT_LAST if again else Deeds.FAILS_ONCE,
    ):
        raise KeyError(deed)
    if deed is Deeds.FILLS_THE_DISK or (deed is Deeds.FILLS_IT_AT_LAST and again):
        raw: Any = session.connection().connection.dbapi_connection
        raw.rollback()
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(Deeds), min_size=1, max_size=6))
def test_whatever_the_writes_of_a_group_do_each_is_told_what_became_of_it(
    shared: tuple[Store, list[frozenset[Topic]]], deeds: list[Deeds]
) -> None:
    store, rung = shared
    tries: Counter[int] = Counter()

    def act(session: Session, number: int, deed: Deeds) -> int:
        tries[number] += 1
        ring(session, Topic.ALERTS)
        add_key(session, str(number))
        session.flush()
        do(deed, session, again=max(tries.values()) > 1)
        return number

    def clear(session: Session) -> None:
        session.execute(delete(KeyRow))
        add_key(session, "there already")

    store.write(clear)
    rung.clear()
    with ThreadPoolExecutor(1) as pool:
        with writer_held(store, pool):
            jobs = [
                store._submit(partial(act, number=number, deed=deed))
                for number, deed in enumerate(deeds)
            ]
            for job, deed in zip(jobs, deeds, strict=True):
                if deed is Deeds.IS_GIVEN_UP:
                    job.let_go()
    wait([job.done for job in jobs], 60)
    store.write(lambda session: None)  # by now it has told what was rung for
    told = [CancelledError() if job.done.cancelled() else job.done.exception(60) for job in jobs]
    expected = outcomes(deeds)
    assert [None if e is None else type(e) for e in told] == expected, list(map(str, deeds))
    kept = {str(number) for number, kind in enumerate(expected) if kind is None}
    names = store.read(lambda session: set(session.scalars(select(KeyRow.name))))
    assert names == kept | {"there already"}
    assert rung == ([frozenset({Topic.ALERTS})] if kept else [])
    assert all(not tries[n] for n, deed in enumerate(deeds) if deed is Deeds.IS_GIVEN_UP)


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


@pytest.fixture
def connections() -> Iterator[set[int]]:
    """Those that are open now, of every store that is opened meanwhile."""
    found: set[int] = set()

    def on_connect(link: object, _: object) -> None:
        found.add(id(link))

    def on_close(link: object, _: object) -> None:
        found.discard(id(link))

    event.listen(Pool, "connect", on_connect)
    event.listen(Pool, "close", on_close)
    yield found
    event.remove(Pool, "connect", on_connect)
    event.remove(Pool, "close", on_close)


def test_closing_waits_for_a_reader_and_leaves_no_connection(
    database_url: str, connections: set[int]
) -> None:
    store = Store(database_url)
    reading, go_on = threading.Event(), threading.Event()

    def read_slowly(session: Session) -> int:
        session.execute(text("SELECT 1"))
        reading.set()
        assert go_on.wait(60)
        return session.execute(text("SELECT 2")).scalar_one()

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(store.read, read_slowly)
        assert reading.wait(60)
        closed = pool.submit(store.close)
        with pytest.raises(TimeoutError):
            closed.result(0.2)
        go_on.set()
        assert slow.result(60) == 2
        closed.result(60)
    assert connections == set()


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


def test_a_start_that_finds_the_newest_schema_loads_nothing_to_migrate_with(
    database_url: str,
) -> None:
    """Its import takes a large part of a second."""
    program = (
        "import sys; from service.db.migrate import migrate; migrate(sys.argv[1]); "
        "print(sorted({'alembic', 'mako'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, database_url]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(NEARBY, "connect_timeout", 2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"postgresql+psycopg://gonogo@127.0.0.1:{silent.getsockname()[1]}/gonogo"
        store = Store(address)
        with pytest.raises(Unavailable):
            store.read(lambda session: session.scalars(select(KeyRow.name)).all())
        store.close()


@pytest.mark.parametrize(
    ("said", "idle_s"), [("", NEARBY["keepalives_idle"]), ("?keepalives_idle=77", 77)]
)
def test_a_connection_of_postgres_ends_soon_after_its_host(
    postgres_url: str, said: str, idle_s: int
) -> None:
    """A host that lost its power says nothing; the kernel would ask it after two hours."""
    engine = build_engine(postgres_url + said)
    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        with socket.socket(fileno=os.dup(driver.fileno())) as held:
            assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle_s
            waits_ms = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    engine.dispose()
    assert waits_ms == NEARBY["tcp_user_timeout"]


def test_what_a_service_held_whose_host_is_gone_is_free_soon(postgres_url: str) -> None:
    """The right to conduct among it: a server that asks nobody would keep it for hours."""
    url = f"{postgres_url}?options=-csearch_path%3Dours%20-ctcp_keepalives_count%3D7"
    told = {}
    for engine in (build_engine(url), _connecting(url)):
        with engine.connect() as connection:
            for name in ("idle", "interval", "count"):
                asked = text(f"SELECT current_setting('tcp_keepalives_{name}')")
                told[name] = connection.execute(asked).scalar()
            named = connection.execute(text("SELECT current_setting('search_path')")).scalar()
        engine.dispose()
        assert told == {"idle": "15", "interval": "5", "count": "7"}
        assert named == "ours", "what the URL says counts"


def test_a_server_that_takes_writes_no_more_is_left_for_the_one_that_does(
    postgres_url: str,
) -> None:
    """A fail-over may leave connections to the server open that led before."""
    migrate(postgres_url)
    store = Store(postgres_url)
    for look in (lambda: store.can_write(5.0), lambda: wrote(store, "lost")):
        with store.connect() as connection:
            connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
            connection.commit()
        assert not look()
        assert store.can_write(5.0)
    assert wrote(store, "kept")
    assert store.read(lambda session: session.scalars(select(KeyRow.name)).all()) == ["kept"]
    store.close()


def test_a_writer_that_was_stopped_for_too_long_is_told_to_come_again(postgres_url: str) -> None:
    migrate(postgres_url)
    store = Store(postgres_url)

    def sleep(session: Session) -> None:
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
        time.sleep(0.5)
        add_key(session, "late")

    with pytest.raises(Unavailable):
        store.write(sleep)
    assert wrote(store, "next")
    store.close()


def test_a_full_disk_of_postgres_is_named(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    migrate(postgres_url)
    store = Store(postgres_url)
    full = "DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    with pytest.raises(Unavailable, match="its disk is full"):
        store.write(lambda session: session.execute(text(full)))
    assert store.is_full
    assert "could not extend file" in caplog.text
    assert wrote(store, "kept")
    assert not store.is_full
    store.close()


def wrote(store: Store, name: str) -> bool:
    try:
        store.write(lambda session: add_key(session, name))
    except Unavailable:
        return False
    return True


def test_what_nobody_waits_for_any_more_is_not_held_and_has_a_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a disk hangs workers bring the same megabytes again and again."""
    go_on, held = threading.Event(), threading.Semaphore(0)
    bodies: weakref.WeakSet[threading.Event] = weakref.WeakSet()
    writers = 1 if store.sqlite else db_store._WRITERS

    def wait(session: Session) -> None:
        held.release()
        assert go_on.wait(60)

    async def bring() -> None:
        body = threading.Event()
        bodies.add(body)
        await store.write_async(lambda session: body.set())

    with ThreadPoolExecutor(writers) as pool:
        try:
            for _ in range(writers):
                pool.submit(lambda: asyncio.run(store.write_async(wait)))
            assert all(held.acquire(timeout=60) for _ in range(writers))
            monkeypatch.setattr(db_store, "_PATIENCE_S", 0.05)
            monkeypatch.setattr(db_store, "_QUEUE", 3)
            for said in ("is overloaded", "is overloaded", "is overloaded", "3 writes wait"):
                with pytest.raises(Unavailable, match=said):
                    asyncio.run(bring())
            gc.collect()
            assert len(bodies) == 0
        finally:
            go_on.set()
    monkeypatch.undo()
    wait_until(lambda: store.waiting == 0, what="the end of the queue")
    store.write(lambda session: add_key(session, "after"))


def test_no_write_is_acknowledged_that_a_full_database_lost(tmp_path: Path) -> None:
    """Three in one group, the middle one fills the database: the others hold or are told."""
    url = f"sqlite:///{tmp_path}/small.db"
    migrate(url)
    store = Store(url)
    room = 40

    def limit(session: Session) -> None:
        pages = session.execute(text("PRAGMA page_count")).scalar_one()
        session.execute(text(f"PRAGMA max_page_count={pages + room}"))

    store.write(limit)

    def add_much(session: Session) -> str:
        add_key(session, "much")
        session.flush()
        for number in range(2 * room):
            session.add(
                KeyRow(
                    id=f"m{number}", name="x" * 4000, role="viewer", hash=f"m{number}", created_at=0
                )
            )
            session.flush()
        return "much"

    def attempt(work: Callable[[Session], str]) -> str | None:
        try:
            return store.write(work)
        except Unavailable:
            return None

    writes: list[Callable[[Session], str]] = [
        lambda session: add_key(session, "before"),
        add_much,
        lambda session: add_key(session, "after"),
    ]
    told = []
    with ThreadPoolExecutor(5) as pool:
        with writer_held(store, pool) as first:
            for number, work in enumerate(writes, 1):
                told.append(pool.submit(attempt, work))
                wait_for(store, number)
        first.result(60)
        said = {name for name in (future.result(60) for future in told) if name is not None}
    assert "much" not in said
    kept = store.read(lambda session: set(session.scalars(select(KeyRow.name))))
    assert said == kept & {"before", "after", "much"}
    assert store.write(lambda session: add_key(session, "later")) == "later"
    store.close()


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
    """The disk fills up under many writers; what is said to be written is there afterwards."""
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

    def connect() -> object:
        if next(broken):
            raise RuntimeError("no memory")
        return real()

    real = store._writers.connect
    monkeypatch.setattr(store._writers, "connect", connect)
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


def test_who_asks_whether_writes_are_taken_takes_one_place_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may ask, without a key and as often as they like, while the writer hangs."""
    monkeypatch.setattr("service.db.store._QUEUE", 3)
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    store = Store(url)
    with ThreadPoolExecutor(24) as pool:
        with writer_held(store, pool) as first:
            for _ in range(3):
                assert not any(pool.map(store.can_write, [0.01] * 8))
            assert store.waiting == 1
            patient = [pool.submit(store.can_write, 60) for _ in range(8)]
            writes = []
            for number in (1, 2):
                writes.append(pool.submit(store.write, partial(add_key, name=f"k{number}")))
                wait_for(store, number + 1)
            assert store.waiting == 3
        for write in (first, *writes):
            write.result(60)
        assert all(asked.result(60) for asked in patient)
    assert store.can_write(60)
    store.close()


def test_a_full_queue_takes_no_more_to_ask_whether_writes_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.db.store._QUEUE", 1)
    url = f"sqlite:///{tmp_path}/gonogo.db"
    migrate(url)
    store = Store(url)
    with ThreadPoolExecutor(2) as pool:
        with writer_held(store, pool) as first:
            queued = pool.submit(store.write, lambda session: None)
            wait_for(store, 1)
            assert not store.can_write(1.0)
            assert store.waiting == 1
        for write in (first, queued):
            write.result(60)
    assert store.can_write(60)
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
