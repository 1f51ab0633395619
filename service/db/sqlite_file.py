"""Is SQLite's file still the one that was opened? Its place, its log and what is in it.

Guarantees: nothing is written to a file that was moved, or whose content somebody replaced
(`cp older.db gonogo.db` under a living service): what had been committed since is not in it, and
its log (`-wal`), which belongs to the content of before, would make a mixture of the two. So that
log is put aside (`-wal.aside`), and a lock keeps SQLite from playing it into the copy when the last
connection is closed: a service that starts next finds the copy as it was put there; a log that was
put there with the copy stays beside it. Where the log was removed, what it held is put into the
file from what the writer still has open, before anything more is written. One that was emptied, or
written over, holds it no more: nothing is written then either, and it is put aside.

Every transaction that changes something counts `user_version` up, which lies in the file's first
page; so a checkpoint, whoever's, brings a larger count into the file, and an older copy a smaller
one. Where another than the writer changed the file, a new connection must also find the writer's
last commit and no mixture, and then every connection is had anew: those of before keep pages of a
file that may be laid out otherwise. A file that is empty is not opened: SQLite takes it for a new
database, and removes its log. The file is looked at through one descriptor that stays open: to
close one lets go of SQLite's locks in this process.
"""

import fcntl
import logging
import os
import sqlite3
import struct
from contextlib import closing
from typing import NoReturn

from gonogo.contract.errors import Unavailable

_MAGIC = b"SQLite format 3\0"
"""What SQLite's file begins with (https://sqlite.org/fileformat.html)."""
_USER_VERSION = slice(60, 64)
"""Where in it its `user_version` lies, big-endian."""
_LOG_MAGIC = frozenset({b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"})
"""What its log begins with."""
_LOG_HEAD_BYTES = 32
"""Which is another one whenever SQLite begins the log anew."""
_LARGEST = 2**31 - 1
"""What that counts to; then it begins anew."""
_SHARED_AT, _SHARED_BYTES = 2**30 + 2, 510
"""What SQLite locks for itself alone before it plays a log in with its last connection."""
_log = logging.getLogger(__name__)


class SqliteFile:
    """The file of a database, as its one writer looks at it; no call is made from two threads.

    Only `check_place` may be called from any thread.

    Args:
        path: of the database; its log lies beside it.
    """

    def __init__(self, path: str) -> None:
        self._path, self._log_path = path, f"{path}-wal"
        self._place: tuple[int, ...] = ()
        """Inode and device of the file when it was first seen."""
        self._log_place: tuple[int, ...] = ()
        """The same of its log, as the writer's connection has it open."""
        self._log_stamp: tuple[int, ...] = ()
        """Size and last changes of the log when it was last known to be the writer's."""
        self._log_head = b""
        """How it began then."""
        self._stamp: tuple[int, ...] = ()
        """Size and last changes of the file when it was last known to be the writer's."""
        self._count = 0
        """How far the file itself, without its log, had counted then."""
        self._committed: int | None = None
        """How far the writer's last commit had counted."""
        self._descriptor: int | None = None
        self._refusal = ""
        """Why nothing is written any more."""

    def check_place(self) -> None:
        """Refuse a file that was moved or replaced: at the next start it is not there.

        Raises:
            Unavailable: it was.
        """
        if self._refusal:
            raise Unavailable(self._refusal)
        try:
            here = os.stat(self._path)
            found: tuple[int, ...] = (here.st_ino, here.st_dev)
        except FileNotFoundError:
            found = ()
        except OSError:  # the database itself will say what ails the disk
            return
        self._place = self._place or found
        if found != self._place:
            raise Unavailable(
                f"{self._path} was moved, removed or replaced while the service runs: nothing is"
                " written; stop gonogo, put the database back and start it again"
            )

    @property
    def is_refused(self) -> bool:
        """Whether nothing is written any more."""
        return bool(self._refusal)

    def check_content(self, *, own: bool = False) -> bool:
        """Refuse a file whose content, or log, somebody replaced; say whether another changed it.

        One whose log was removed is looked at again when that is saved.

        Args:
            own: whether the writer has just committed, which may have changed the file.

        Raises:
            Unavailable: somebody did, or nobody can tell just now.
        """
        if self._refusal:
            raise Unavailable(self._refusal)
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            here = os.fstat(self._descriptor)
            stamp = _stamp_of(here)
            log = self._look_at_log()
            if stamp == self._stamp and log is None:
                return False
            head = os.pread(self._descriptor, _USER_VERSION.stop, 0)
        except OSError:  # the database itself will say what ails the disk
            return False
        count = int.from_bytes(head[_USER_VERSION])
        if log is not None:
            if not self._is_of_writer(log, count):  # one that came with a copy belongs to it
                self._refuse(log_aside=own or stamp == self._stamp)
            self._log_stamp, self._log_head = log
        another = bool(self._stamp) and not own and stamp != self._stamp
        if self._stamp:
            its = head.startswith(_MAGIC) and not _is_before(count, self._count)
            if its and another and self.has_lost_its_log():
                return True
            if not its or (another and not self._is_whole(count)):
                self._refuse(log_aside=True)
        self._stamp, self._count = stamp, count
        return another

    def count_up(self, connection: sqlite3.Connection) -> int:
        """Count a transaction that changed something; return how far that is.

        Raises:
            Unavailable: what the writer had committed is not there: somebody replaced it by way of
                SQLite (`.restore`).
        """
        (last,) = connection.execute("PRAGMA user_version").fetchone()
        if self._committed is not None and _is_before(last, self._committed):
            self._refuse(log_aside=None)  # it is that of what is there now
        count = int(last) % _LARGEST + 1
        connection.execute(f"PRAGMA user_version = {count}")
        return count

    def note_commit(self, count: int | None) -> None:
        """Take note of a commit.

        Args:
            count: how far it counted; None where it changed nothing.

        Raises:
            Unavailable: the file is not the writer's any more: what was committed is not in it.
        """
        self._log_place = self._log_place or _place_of(self._log_path)
        self.check_content(own=True)
        self._committed = self._committed if count is None else count

    def close(self) -> None:
        """Let the file go, when every connection is closed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def has_lost_its_log(self) -> bool:
        """Say whether the log that the writer has open was removed."""
        return self._log_place not in ((), _place_of(self._log_path))

    def let_go(self) -> None:
        """Take note that the writer's connection is closed, and its log with it."""
        self._log_place = ()

    def _look_at_log(self) -> tuple[tuple[int, ...], bytes] | None:
        """Return size and last changes of the log, and how it begins; None: as they were.

        None as well where it was removed: its content the writer still has.

        Raises:
            OSError: it cannot be seen.
        """
        try:
            found = os.stat(self._log_path)
        except OSError as error:
            if self._log_place:
                return None
            if isinstance(error, FileNotFoundError):
                return (0,), b""
            raise
        if self._log_place not in ((), (found.st_ino, found.st_dev)):
            return None
        stamp = _stamp_of(found)
        if stamp == self._log_stamp:
            return None
        try:
            log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return (0,), b""
        try:
            return stamp, os.read(log, _LOG_HEAD_BYTES)
        finally:
            os.close(log)

    def _is_of_writer(self, log: tuple[tuple[int, ...], bytes], count: int) -> bool:
        """Say whether what was committed is in a log as it is now, or no longer needs to be.

        SQLite appends to it, and begins it anew only where the file itself holds all of it.

        Args:
            log: what `_look_at_log` returned.
            count: how far the file itself has counted.
        """
        (size, *_), head = log
        if head and head[:4] not in _LOG_MAGIC:
            return False
        if self._committed is None or not _is_before(count, self._committed):
            return True
        return head == self._log_head and size >= self._log_stamp[0]

    def _is_whole(self, count: int) -> bool:
        """Say whether what is on the disk holds the writer's last commit, and is no mixture.

        Args:
            count: how far the file itself has counted; its log has counted as far, or further.

        Raises:
            Unavailable: it cannot be read just now.
        """
        try:
            with closing(sqlite3.connect(self._path)) as fresh:  # others keep pages of before
                (seen,) = fresh.execute("PRAGMA user_version").fetchone()
                if any(_is_before(seen, known) for known in (count, self._committed or count)):
                    return False
                return bool(fresh.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the database cannot be read: {error}") from error
        except sqlite3.DatabaseError:
            return False

    def _keep_log_out(self, *, aside: bool) -> None:
        """Keep the log out of what is not its own, until this process has let the file go.

        Args:
            aside: whether it is to be kept out of it afterwards, too.
        """
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, _SHARED_AT, _SHARED_BYTES, 0)
        place = f"{self._log_path}.aside"
        try:
            if self._descriptor is not None:
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock)
            if not aside:
                return
            os.replace(self._log_path, place)
        except OSError as error:
            _log.error("%s cannot be put aside: %s", self._log_path, error)
        else:
            _log.error("%s is put aside", self._log_path, extra={"aside": place})

    def _refuse(self, *, log_aside: bool | None) -> NoReturn:
        """Write nothing from now on.

        Args:
            log_aside: what `_keep_log_out` is told; None: the log may be played in.

        Raises:
            Unavailable: always.
        """
        if log_aside is not None:
            self._keep_log_out(aside=log_aside)
        self._refusal = (
            f"the content of {self._path} or its -wal was replaced while the service runs, and what"
            " had been committed since is not in it: nothing is written; stop gonogo, and start it"
            " again to go on with what is there"
        )
        _log.error(self._refusal, extra={"action": "database_replaced"})
        raise Unavailable(self._refusal)


def _is_before(count: int, known: int) -> bool:
    """Say whether a count is one of before another."""
    return 0 < (known - count) % _LARGEST <= _LARGEST // 2


def _stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Return size and last changes of a file; `cp -p` sets one of the two back."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _place_of(path: str) -> tuple[int, ...]:
    """Return inode and device of a file; nothing where it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev
