"""Engines, and transactions as functions, on SQLite and PostgreSQL.

A function given to `write` is committed whole or not at all; its result is returned after the
commit, which is on the disk. SQLite has one writer thread, which commits all waiting functions as
one group with a savepoint for each. On PostgreSQL writers run side by side and take row locks. A
function may run again after a serialization failure, so it touches nothing but its session.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session as Session
from sqlalchemy.orm.session import JoinTransactionMode

from gonogo.contract.errors import Conflict, Unavailable
from service.db.columns import Table

if TYPE_CHECKING:  # the import is slow, and most starts need no migration
    from alembic.config import Config


_POSTGRES = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Settings of each connection, so that one to a dead host ends within a minute."""
_SERVER = {
    "tcp_keepalives_idle": "15s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    "statement_timeout": "30s",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Settings of the server for each connection; the lock of a dead conductor is free as soon."""
_BUSY_S = 30.0
_JOURNAL_BYTES = 4 * 2**20


def build_engine(url: str, *, writes: bool = False) -> Engine:
    """Return an engine; a SQLite engine for `writes` takes the write lock when it begins."""
    if not is_sqlite(url):
        return create_engine(
            url,
            pool_size=10,
            max_overflow=30,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=postgres_arguments(url),
        )
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"journal_size_limit={_JOURNAL_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def is_sqlite(url: str) -> bool:
    """Say whether a URL names a SQLite database."""
    return make_url(url).get_backend_name() == "sqlite"


def postgres_arguments(url: str) -> dict[str, Any]:
    """Return the arguments of every connection to PostgreSQL; those of the URL win."""
    options = " ".join(f"-c {name}={value}" for name, value in _SERVER.items())
    return {**_POSTGRES, "options": options, **make_url(url).query}


_T = TypeVar("_T")


class Topic(StrEnum):
    """What a transaction changed that a loop of the conductor waits for."""

    EVENTS = "events"
    ALERTS = "alerts"
    DECIDED = "decided"
    """A decision was recorded, and its file is due."""
    QUEUED = "queued"
    ENDED = "ended"
    """A run has ended, or more files of an ended run arrived."""


NO_ANSWER = (OperationalError, PoolTimeout)
NO_ANSWER_TEXT = "the database does not answer"
_TOPICS = "topics"
_GROUP = 64
_QUEUE = 1000
"""Writers that may wait; the next one is refused at once."""
_PATIENCE_S = 60.0
_RETRIES = 5
_TAKES_WRITES = text("SELECT current_setting('transaction_read_only') = 'off'")
_SERIALIZATION, _DEADLOCK, _DISK_FULL = "40001", "40P01", "53100"
_log = logging.getLogger(__name__)


def ring(session: Session, topic: Topic) -> None:
    """Wake the loops that wait for a topic once this transaction is committed."""
    session.info.setdefault(_TOPICS, set()).add(topic)


@dataclass(slots=True)
class _Job(Generic[_T]):
    work: Callable[[Session], _T]
    done: "Future[_T]"
    topics: frozenset[Topic] = frozenset()


class Store:
    """The database; `after_commit` gets the topics rung for, `info` is each `Session.info`."""

    def __init__(
        self,
        url: str,
        *,
        after_commit: Callable[[frozenset[Topic]], None] | None = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        self.url = url
        self._info: dict[Any, Any] = info if info is not None else {}
        self.sqlite = is_sqlite(url)
        self._after_commit = after_commit or (lambda topics: None)
        self._readers = build_engine(url)
        self._writers = build_engine(url, writes=True) if self.sqlite else self._readers
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if self.sqlite:
            self._thread = threading.Thread(target=self._run, name="db-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the writer, then close every connection."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        for engine in (self._readers, self._writers):
            engine.dispose()

    @property
    def waiting(self) -> int:
        """Number of writes that have not begun."""
        return self._jobs.qsize()

    def connect(self) -> Connection:
        """Return a connection of its own, for the advisory lock of the conductor."""
        return self._readers.connect()

    def open_session(self) -> Session:
        """Return a session that reads; the caller closes it. A query may raise `NO_ANSWER`."""
        return Session(self._readers, expire_on_commit=False)

    def read(self, work: Callable[[Session], _T]) -> _T:
        """Return what `work` reads, in one consistent snapshot on SQLite."""
        try:
            with self.open_session() as session:
                return work(session)
        except NO_ANSWER as error:
            raise Unavailable(NO_ANSWER_TEXT) from error

    def write(self, work: Callable[[Session], _T]) -> _T:
        """Run `work` in a transaction and return its result after the commit."""
        if self._thread is None:
            return self._write_now(work)
        return self._write_in_turn(work, _PATIENCE_S)

    def can_write(self, within_s: float) -> bool:
        """Say whether a write that changes nothing is committed within `within_s` seconds."""
        try:
            if self._thread is not None:
                self._write_in_turn(lambda session: None, within_s)
                return True
            return self.read(lambda session: session.execute(_TAKES_WRITES).scalar()) is True
        except Unavailable:
            return False

    def _write_in_turn(self, work: Callable[[Session], _T], patience_s: float) -> _T:
        if self.waiting >= _QUEUE:
            raise Unavailable(f"the database is overloaded: {_QUEUE} writes wait")
        job = _Job(work, Future())
        self._jobs.put(job)
        try:
            return job.done.result(timeout=patience_s)
        except OperationalError as error:
            raise Unavailable(NO_ANSWER_TEXT) from error
        except TimeoutError as error:
            if not job.done.cancel():
                _log.warning("a write goes on unawaited", extra={"action": "write_unawaited"})
            raise Unavailable("the database is overloaded") from error

    def _write_now(self, work: Callable[[Session], _T]) -> _T:
        """Run a transaction in this thread, again after a serialization failure."""
        for attempt in range(1, _RETRIES + 1):
            try:
                with self._writers.begin() as connection:
                    result, topics = self._run_work(connection, work, "rollback_only")
                self._ring(topics)
                return result
            except PoolTimeout as error:
                raise Unavailable(NO_ANSWER_TEXT) from error
            except (OperationalError, InternalError) as error:
                state = getattr(error.orig, "sqlstate", None)
                if state in (_SERIALIZATION, _DEADLOCK) and attempt < _RETRIES:
                    continue
                full = ": its disk is full" if state == _DISK_FULL else ""
                _log.error("commit failed: %s", error.orig, extra={"action": "commit_failed"})
                raise Unavailable(f"{NO_ANSWER_TEXT}{full}") from error
        raise AssertionError("the last attempt returns or raises")

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            group: list[_Job[Any]] = [first]
            ends = False
            while len(group) < _GROUP and not self._jobs.empty() and not ends:
                job = self._jobs.get()
                if job is None:
                    ends = True
                else:
                    group.append(job)
            self._commit_group([job for job in group if job.done.set_running_or_notify_cancel()])
            if ends:
                return

    def _commit_group(self, group: list[_Job[Any]]) -> None:
        """Run a group in one transaction; each job fails or holds by itself.

        SQLite gives up the whole transaction on a full disk. Then nothing of the group is kept, and
        every job fails with the error.
        """
        results: list[tuple[_Job[Any], Any]] = []
        try:
            with self._writers.begin() as connection:
                for job in group:
                    self._run_job(connection, job, results)
        except Exception as error:  # noqa: BLE001 - the writer outlives whatever happens to a group
            _log.error("commit failed: %s", error, extra={"action": "commit_failed"})
            for job in group:
                if not job.done.done():
                    job.done.set_exception(error)
            return
        for job, result in results:
            job.done.set_result(result)
        self._ring(frozenset().union(*(job.topics for job, _ in results)))

    def _run_job(
        self, connection: Connection, job: _Job[Any], results: list[tuple[_Job[Any], Any]]
    ) -> None:
        failure: Exception | None = None
        result: Any = None
        try:
            result, job.topics = self._run_work(connection, job.work, "create_savepoint")
        except Exception as error:  # noqa: BLE001 - belongs to the caller, who gets it as it is
            failure = error
        raw = connection.connection.dbapi_connection
        if raw is None or not raw.in_transaction:
            raise Unavailable(f"the database gave up a transaction: {failure}") from failure
        if failure is not None:
            job.done.set_exception(failure)
        else:
            results.append((job, result))

    def _run_work(
        self, connection: Connection, work: Callable[[Session], _T], mode: JoinTransactionMode
    ) -> tuple[_T, frozenset[Topic]]:
        with Session(
            connection, join_transaction_mode=mode, expire_on_commit=False, info=self._info
        ) as session:
            result = work(session)
            session.commit()
            return result, frozenset(session.info.get(_TOPICS, ()))

    def _ring(self, topics: frozenset[Topic]) -> None:
        if topics:
            self._after_commit(topics)


def insert_if_new(session: Session, table: type[Table], row: dict[str, Any]) -> bool:
    """Insert a row unless its primary key is there; say whether it was inserted.

    On PostgreSQL this waits for another transaction that is inserting the same key.
    """
    session.flush()
    name = session.get_bind().dialect.name
    dialect = import_module(f"sqlalchemy.dialects.{name}")
    statement = dialect.insert(table.__table__).on_conflict_do_nothing()
    returned = statement.returning(*table.__table__.primary_key)
    return session.connection().execute(returned, row).first() is not None


HEAD = "1002"
_LOCK = 0x676F6E6F67
_ROOT = Path(__file__).resolve().parents[2]


def build_config(connection: Connection | None = None) -> "Config":
    """Return Alembic's configuration, bound to a connection when given."""
    from alembic.config import Config

    config = Config()
    migrations = str(_ROOT / "migrations").replace("%", "%%")
    config.set_main_option("script_location", migrations)
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def migrate(url: str) -> None:
    """Bring the database at `url` to the newest revision."""
    found, _ = current_revision(url)
    if found == HEAD:
        return
    if found is not None:
        raise Conflict(
            f"the database has revision {found}, of another release; this one knows {HEAD}: start"
            " that release again, or restore a backup of this one"
        )
    from alembic import command

    file = make_url(url).database if is_sqlite(url) else None
    if file and file != ":memory:":
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    engine = build_engine(url, writes=True)
    try:
        with engine.begin() as connection:
            if not is_sqlite(url):
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            command.upgrade(build_config(connection), HEAD)
    except (InternalError, OperationalError, ProgrammingError) as error:
        raise Unavailable(
            f"the database cannot be migrated: {_line_of(error)}; its role must own it, on a server"
            " that takes writes"
        ) from error
    finally:
        engine.dispose()


def current_revision(url: str) -> tuple[str | None, str]:
    """Return the revision of the database and the newest one; None: there is no database."""
    file = make_url(url).database if is_sqlite(url) else None
    if file and not Path(file).exists():
        return None, HEAD  # SQLite would make it
    engine = build_engine(url)
    try:
        with engine.connect() as connection:
            found = None
            if inspect(connection).has_table("alembic_version"):
                found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    except (OperationalError, ProgrammingError) as error:
        raise Unavailable(f"the database cannot be opened: {_line_of(error)}") from error
    finally:
        engine.dispose()
    return found, HEAD


def _line_of(error: DBAPIError) -> str:
    return str(error.orig).partition("\n")[0]
