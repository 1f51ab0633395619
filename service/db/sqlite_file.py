"""Is SQLite's file still the one that was opened? Its place, its log and what is in it.

Guarantees: nothing is written to a file that was moved, or whose content somebody replaced
(`cp older.db gonogo.db` under a living service): what had been committed since is not in it, and
its log (`-wal`), which belongs to the content of before, would make a mixture of the two. So that
log is put aside (`-wal.aside`) where the content was replaced: a service that starts next finds the
copy as it was put there. Where the log was removed, what it held is put into the file from what the
writer still has open, before anything more is written.

Every transaction that changes something counts `user_version` up, which lies in the file's first
page; so a checkpoint, whoever's, brings a larger count into the file, and an older copy a smaller
one. What has the same has lost nothing: all that was committed since lies in the log. Where another
than the writer changed the file, it must also be no mixture. The file is looked at through one
descriptor that stays open: to close one lets go of SQLite's locks in this process.
"""

import logging
import os
import shutil
import sqlite3
from contextlib import closing

from gonogo.contract.errors import Unavailable

_USER_VERSION_AT = 60
"""Where in SQLite's file its `user_version` lies, big-endian (https://sqlite.org/fileformat.html)."""
_LARGEST = 2**31 - 1
"""What that counts to; then it begins anew."""
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
        self._stamp: tuple[int, ...] = ()
        """Size and last change of the file when it was last known to be the writer's."""
        self._count = 0
        """How far the file itself, without its log, had counted then."""
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

    def check_content(self, *, own: bool = False) -> None:
        """Refuse a file whose content somebody replaced.

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
            stamp = here.st_size, here.st_mtime_ns
            if stamp == self._stamp:
                return
            count = int.from_bytes(os.pread(self._descriptor, 4, _USER_VERSION_AT))
        except OSError:  # the database itself will say what ails the disk
            return
        if self._stamp and (count < self._count or not (own or self._is_whole())):
            self._refuse()
        self._stamp, self._count = stamp, count

    def note_commit(self) -> None:
        """Take note of a commit.

        Raises:
            Unavailable: the file is not the writer's any more: what was committed is not in it.
        """
        self._log_place = self._log_place or _place_of(self._log_path)
        self.check_content(own=True)

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

    def _is_whole(self) -> bool:
        """Say whether what is on the disk is no mixture.

        Raises:
            Unavailable: it cannot be read just now.
        """
        try:
            with closing(sqlite3.connect(self._path)) as fresh:  # others keep pages of before
                return bool(fresh.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the database cannot be read: {error}") from error
        except sqlite3.DatabaseError:
            return False

    def _refuse(self) -> None:
        """Write nothing from now on, and keep the log out of what is not its own.

        Raises:
            Unavailable: always.
        """
        self._refusal = (
            f"the content of {self._path} was replaced while the service runs, and what had been"
            " committed since that copy is not in it: nothing is written; stop gonogo, and start it"
            " again to go on with the copy"
        )
        aside = f"{self._log_path}.aside"
        try:
            shutil.copyfile(self._log_path, aside)
            os.truncate(self._log_path, 0)
        except OSError as error:
            _log.error("%s cannot be put aside: %s", self._log_path, error)
        _log.error(self._refusal, extra={"action": "database_replaced", "aside": aside})
        raise Unavailable(self._refusal)


def count_up(connection: sqlite3.Connection) -> None:
    """Count a transaction that changed something."""
    (last,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {int(last) % _LARGEST + 1}")


def _place_of(path: str) -> tuple[int, ...]:
    """Return inode and device of a file; nothing where it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev
