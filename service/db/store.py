"""How is the database read and written? Transactions as functions, on SQLite and PostgreSQL.

Guarantees: a function given to `write` is committed whole or not at all, and its result is returned
after the commit, which is on the disk. SQLite has one writer thread that commits whatever waits as
one group (BEGIN IMMEDIATE), so that writers neither fail on locks nor pay one fsync each; where one
of them fails, the group runs again with a savepoint for each, and where its transaction is lost (a
full disk), everyone in it is told so. On PostgreSQL writers run side by side and take row locks; a
server that takes writes no more (a fail-over that left its connections open) is left for whichever
a new connection finds. A function may be run again (after a serialization failure, or another's of
its group), so it touches nothing but its session; one that nobody waits for any more is not begun,
and not held either. SQLite's file stays what it was (`sqlite_file`): nothing is written to one that
was moved or replaced, and none is opened in its place, into which SQLite would play the log of the
one that was. Where its log (`-wal`) was removed, what that held is put into the file from what the
writer still has open.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session as Session  # what every transaction is, to all of the service
from sqlalchemy.orm.session import JoinTransactionMode

from gonogo.contract.errors import Unavailable
from service.db.engine import build_engine, dispose, is_sqlite
from service.db.sqlite_file import SqliteFile

_T = TypeVar("_T")


class Topic(StrEnum):
    """What a transaction changed that somebody waits for."""

    EVENTS = "events"
    ALERTS = "alerts"
    QUEUED = "queued"
    """A run waits for a worker."""
    ENDED = "ended"
    """A run has ended, or more of what an ended one left is here."""


NO_ANSWER = (OperationalError, PoolTimeout)
"""What a database raises that cannot be asked."""
NO_ANSWER_TEXT = "the database does not answer"
_TOPICS = "topics"
_JOINED: JoinTransactionMode = "rollback_only"
"""How a session joins a transaction that is kept whole or not at all: it needs no savepoint."""
_GROUP = 64
_QUEUE = 1000
"""How many writers may wait; who comes then is told at once."""
_WRITERS = 20
"""Of PostgreSQL, for those who wait in no thread; with 40 of routes they share its connections."""
_PATIENCE_S = 60.0
_RETRIES = 5
_log = logging.getLogger(__name__)


def ring(session: Session, topic: Topic) -> None:
    """Have those who wait for a topic woken once this transaction is committed."""
    session.info.setdefault(_TOPICS, set()).add(topic)


def tables_of(session: Session) -> Connection:
    """Return the connection of a session's transaction, for statements on tables.

    That of a session without a savepoint is there from the start; any other begins a transaction or
    a savepoint first.
    """
    joined = session.join_transaction_mode == _JOINED and isinstance(session.bind, Connection)
    return session.bind if joined else session.connection()  # type: ignore[return-value]


_TAKES_WRITES = text("SELECT current_setting('transaction_read_only') = 'off'")
_READ_ONLY, _LEFT_IDLE, _DISK_FULL = "25006", "25P03", "53100"


@dataclass(slots=True)
class _Job(Generic[_T]):
    work: Callable[[Session], _T | None]
    done: "Future[_T]"
    topics: frozenset[Topic] = frozenset()
    """What it changed."""

    def let_go(self) -> None:
        """Hold nothing of what nobody waits for: while a disk hangs it keeps its place."""
        if self.done.cancel():
            self.work = _nothing


def _nothing(session: Session) -> None:
    """Stand for what nobody waits for any more."""


class Store:
    """The database.

    Args:
        url: a SQLAlchemy URL.
        after_commit: called in the writer's thread after a commit, with what was rung for.
        info: what every writing session carries (`Session.info`), such as the home's key.
    """

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
        self._file = SqliteFile(make_url(url).database or ":memory:")
        self._readers = build_engine(url, before_connect=self._check_opening)
        self._writers = (
            build_engine(url, writes=True, before_connect=self._check_opening)
            if self.sqlite
            else self._readers
        )
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._trying = threading.Lock()
        self._trial: Future[None] | None = None
        """The last write of nothing, by which it is seen whether any is committed."""
        self._writing: Connection | None = None
        """The writer's own, kept from group to group."""
        self.is_full = False
        """Whether PostgreSQL had no room for the last write that it was asked for."""
        self._pool: ThreadPoolExecutor | None = None
        if not self.sqlite:
            self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="db-writer")
        else:
            self._thread = threading.Thread(target=self._run, name="db-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the writer and close every connection, after the readers that are still at it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._pool is not None:
            self._pool.shutdown()
        for engine in (self._readers, self._writers):
            dispose(engine)
        self._file.close()

    @property
    def waiting(self) -> int:
        """How many writes have not been begun."""
        return self._jobs.qsize()

    def connect(self) -> Connection:
        """Return a connection of its own (the conductor's advisory lock lives on one)."""
        return self._readers.connect()

    def open_session(self) -> Session:
        """Return a session that reads: nothing is asked before its first query.

        Whoever asked closes it. A query raises one of `NO_ANSWER` where there is no answer.
        """
        return Session(self._readers, expire_on_commit=False)

    def read(self, work: Callable[[Session], _T]) -> _T:
        """Return what `work` reads, in one consistent snapshot on SQLite.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            with self.open_session() as session:
                return work(session)
        except NO_ANSWER as error:
            raise Unavailable(NO_ANSWER_TEXT) from error

    def write(self, work: Callable[[Session], _T]) -> _T:
        """Run `work` in a transaction and return its result after the commit.

        Raises:
            Unavailable: the database does not answer, or too many wait for it.
        """
        if self._thread is None:
            return self._write_now(work)
        job = self._submit(work)
        try:
            return job.done.result(timeout=_PATIENCE_S)
        except OperationalError as error:
            raise Unavailable(NO_ANSWER_TEXT) from error
        except TimeoutError as error:
            raise _gave_up(job.done) from error
        finally:
            job.let_go()

    async def write_async(self, work: Callable[[Session], _T]) -> _T:
        """Do what `write` does, without a thread that waits (on PostgreSQL: in one of few).

        Raises:
            Unavailable: the database does not answer, or too many wait for it.
        """
        job = self._submit(work)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        job.done.add_done_callback(lambda _: _wake_from_afar(loop, over))
        patience = loop.call_later(_PATIENCE_S, _wake, over)
        try:
            await over
            if not job.done.done():
                raise _gave_up(job.done)
            return job.done.result()
        except OperationalError as error:
            raise Unavailable(NO_ANSWER_TEXT) from error
        finally:
            patience.cancel()
            job.let_go()

    def _submit(self, work: Callable[[Session], _T]) -> "_Job[_T]":
        """Have `work` run; what is returned has its result after the commit.

        Raises:
            Unavailable: too many wait.
        """
        if self.waiting >= _QUEUE:
            raise Unavailable(f"the database is overloaded: {_QUEUE} writes wait")
        job = _Job(work, Future())
        self._jobs.put(job)
        if self._pool is not None:
            self._pool.submit(self._write_next)
        return job

    def _write_next(self) -> None:
        """Run the write that has waited longest; called in a thread of the pool."""
        job = self._jobs.get()
        if job is None or not job.done.set_running_or_notify_cancel():
            return
        try:
            result = self._write_now(job.work)
        except Exception as error:  # noqa: BLE001 - belongs to the caller, who gets it as it is
            job.done.set_exception(error)
        else:
            job.done.set_result(result)

    def can_write(self, within_s: float) -> bool:
        """Say whether a write that changes nothing is committed within `within_s` seconds.

        However many ask, and for how long, one such write waits: anybody may ask, and the places in
        the queue are for those who have something to write.
        """
        if self._thread is None:
            takes = self.read(lambda session: session.execute(_TAKES_WRITES).scalar()) is True
            if not takes:
                self._writers.dispose()
            return takes
        try:
            self._try_write().result(timeout=within_s)
        except (TimeoutError, DBAPIError, Unavailable):
            return False
        return True

    def _try_write(self) -> "Future[None]":
        """Return the write of nothing that waits, or have a new one wait.

        Raises:
            Unavailable: too many wait.
        """
        with self._trying:
            if self._trial is None or self._trial.done():
                self._trial = self._submit(_nothing).done
            return self._trial

    def _write_now(self, work: Callable[[Session], _T]) -> _T:
        """Run a transaction in this thread; one that lost against another runs again."""
        for attempt in range(1, _RETRIES + 1):
            try:
                with (
                    self._writers.begin() as connection,
                    Session(
                        connection,
                        join_transaction_mode=_JOINED,
                        expire_on_commit=False,
                        info=self._info,
                    ) as session,
                ):
                    result = work(session)
                    if session.in_transaction():
                        session.commit()
                    topics = frozenset(session.info.get(_TOPICS, ()))
                self.is_full = False
                self._tell(topics)
                return result
            except PoolTimeout as error:
                raise Unavailable(NO_ANSWER_TEXT) from error
            except OperationalError as error:
                self.is_full = _state_of(error) == _DISK_FULL
                if self.is_full:
                    _log.error("commit failed: %s", error.orig, extra={"action": "commit_failed"})
                    raise Unavailable("the database takes no writes: its disk is full") from error
                if attempt == _RETRIES or not _lost_a_race(error):
                    raise Unavailable(NO_ANSWER_TEXT) from error
            except InternalError as error:
                state = _state_of(error)
                if state == _READ_ONLY:  # it leads no more: who does is found by a new connection
                    self._writers.dispose()
                    raise Unavailable("the database takes no writes: it is read-only") from error
                if state != _LEFT_IDLE:
                    raise
                raise Unavailable(NO_ANSWER_TEXT) from error
        raise AssertionError("the last attempt returns or raises")

    def _run(self) -> None:
        self._commit_groups()
        with suppress(Unavailable):
            self._file.check_content()  # who closes it last plays its log into it
        self._let_go()

    def _let_go(self) -> None:
        """Give the writer's connection back; another one is had for the next group."""
        if self._writing is not None:
            self._writing.close()
            self._writing = None
            self._file.let_go()

    def _commit_groups(self) -> None:
        """Commit whatever waits, group by group, until told to end."""
        while (first := self._jobs.get()) is not None:
            group, ends = [first], False
            while len(group) < _GROUP and not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    ends = True
                    break
                group.append(job)
            self._commit_group(group)
            if ends:
                return

    def _commit_group(self, group: list[_Job[Any]]) -> None:
        """Run a group in one transaction; each fails or holds by itself.

        Nobody hears of success before the commit. Savepoints cost more than most writes, so they
        are for a group of which one fails. SQLite gives up a whole transaction when a disk is full
        or cannot be read, whatever the savepoints: then nothing of the group is kept and nobody's
        write happened, so everybody gets the error that ended it.
        """
        group = [job for job in group if job.done.set_running_or_notify_cancel()]
        results, error = self._run_group(group, savepoints=False)
        if isinstance(error, _OwnFailure) and len(group) > 1:
            results, error = self._run_group(group, savepoints=True)
        if error is not None:
            if self._file.is_refused:  # what is read would be a mixture
                self._reconnect()
            told = error.failure if isinstance(error, _OwnFailure) else error
            for job in group:
                if not job.done.done():
                    job.done.set_exception(told)
            return
        for job, result in results:
            job.done.set_result(result)
        self._tell(frozenset().union(*(job.topics for job, _ in results)))

    def _run_group(
        self, group: list[_Job[Any]], *, savepoints: bool
    ) -> tuple[list[tuple[_Job[Any], Any]], Exception | None]:
        """Run a group in one transaction; return the results of those who hold.

        Args:
            group: what waits.
            savepoints: whether one that fails leaves the others; it is told at once.

        Returns:
            With an error nothing is kept: one failed, and there are no savepoints, or the
            transaction of all is lost.
        """
        results: list[tuple[_Job[Any], Any]] = []
        try:
            self._check_file()
            connection = self._writing = self._writing or self._writers.connect()
            count: int | None = None
            raw: Any = connection.connection.dbapi_connection
            with connection.begin():
                before = raw.total_changes
                for job in group:
                    self._run_job(connection, job, results, savepoint=savepoints)
                if raw.total_changes != before:
                    count = self._file.count_up(raw)
            self._file.note_commit(count)
        except _OwnFailure as error:
            return [], error
        except Exception as error:  # noqa: BLE001 - the writer outlives whatever happens to a group
            _log.error("commit failed: %s", error, extra={"action": "commit_failed"})
            self._let_go()
            return [], error
        return results, None

    def _check_file(self) -> None:
        """Refuse a file that is another's; have connections anew where another changed it.

        Raises:
            Unavailable: nothing is to be written to it.
        """
        self._file.check_place()
        changed = self._file.check_content()
        if self._save_log():
            changed = self._file.check_content() or changed
        if changed:
            self._reconnect()

    def _save_log(self) -> bool:
        """Put what a log holds that was removed into the database, and have a new one begun.

        What is written to it is lost with the last process that has it open.

        Raises:
            Unavailable: somebody reads it for too long; it is tried again with the next write.
        """
        if self._writing is None or not self._file.has_lost_its_log():
            return False
        raw: Any = self._writing.connection.dbapi_connection
        busy, *_ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Unavailable("the database's -wal was removed while the service runs; it is saved")
        _log.error("the database's -wal was removed; what it held is saved")
        self._reconnect()
        return True

    def _reconnect(self) -> None:
        """Have every connection anew: those that are there keep pages, and a log, of before."""
        self._let_go()
        for engine in (self._writers, self._readers):
            engine.dispose()

    def _check_opening(self) -> None:
        """Keep SQLite from opening a file that is not the one whose log lies beside it.

        Raises:
            sqlite3.OperationalError: so it is; to whoever asks, the database does not answer.
        """
        try:
            self._file.check_place()
        except Unavailable as error:
            raise sqlite3.OperationalError(str(error)) from error

    def _tell(self, topics: frozenset[Topic]) -> None:
        if topics:
            self._after_commit(topics)

    def _run_job(
        self,
        connection: Connection,
        job: _Job[Any],
        results: list[tuple[_Job[Any], Any]],
        *,
        savepoint: bool,
    ) -> None:
        """Run one job of a group.

        Raises:
            _OwnFailure: it failed by itself, and has no savepoint to go back to.
            Unavailable: the database gave up the transaction of all.
        """
        raw = connection.connection.dbapi_connection
        failure: Exception | None = None
        result: Any = None
        try:
            with Session(
                connection,
                join_transaction_mode="create_savepoint" if savepoint else _JOINED,
                expire_on_commit=False,
                info=self._info,
            ) as session:
                result = job.work(session)
                if session.in_transaction():  # else nothing went through it
                    session.commit()
                job.topics = frozenset(session.info.get(_TOPICS, ()))
        except Exception as error:  # noqa: BLE001 - belongs to the caller, who gets it as it is
            failure = error
        open_still = raw is not None and raw.in_transaction
        weather = isinstance(_first(failure), sqlite3.OperationalError)
        if not savepoint and failure is not None and (open_still or not weather):
            raise _OwnFailure(failure)
        if not open_still:
            raise Unavailable(f"the database gave up a transaction: {_first(failure)}") from failure
        if failure is not None:
            job.done.set_exception(failure)
        else:
            results.append((job, result))


class _OwnFailure(Exception):
    """A job failed by itself, without a savepoint: nothing of its transaction is kept."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _wake(over: "asyncio.Future[None]") -> None:
    """Wake who waits for the end of a write, or of its patience; whichever comes first."""
    if not over.done():
        over.set_result(None)


def _wake_from_afar(loop: asyncio.AbstractEventLoop, over: "asyncio.Future[None]") -> None:
    """Wake it from another thread, unless nobody waits any more."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_wake, over)


def _gave_up(done: "Future[Any]") -> Unavailable:
    """Return what is told to whom waited too long; what has not been begun is not."""
    if not done.cancel():  # what becomes of it is still to be told
        _log.warning("a write goes on unawaited", extra={"action": "write_unawaited"})
    return Unavailable("the database is overloaded")


def _first(error: BaseException | None) -> BaseException | None:
    """Return the error of the database that began it; what failed after it hides it."""
    first = error
    while error is not None:
        if isinstance(error, DBAPIError):
            first = error.orig
        error = error.__context__
    return first


def _lost_a_race(error: OperationalError) -> bool:
    """Say whether PostgreSQL ended a transaction for another one's sake."""
    return _state_of(error) in ("40001", "40P01")


def _state_of(error: DBAPIError) -> str | None:
    """Return what PostgreSQL calls an error; None of one that it did not tell."""
    return getattr(error.orig, "sqlstate", None)
