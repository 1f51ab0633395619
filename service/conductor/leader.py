"""Who conducts? One service: by a file lock beside SQLite, by an advisory lock on PostgreSQL.

The advisory lock lives on a connection of its own; when that dies, or its server takes writes no
more (another one leads since), the lock is gone and another service takes over within a second or
two.
"""

import fcntl
import logging
import threading
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from gonogo.files import open_private
from service.db.store import Store

_LOCK = 0x636F6E6475
_CHECK_S = 1.0
_WRITES = "CASE WHEN current_setting('transaction_read_only') = 'off' THEN"
_STILL = text(f"SELECT {_WRITES} true END")
_TRY = text(f"SELECT {_WRITES} pg_try_advisory_lock({_LOCK}) END")
"""Null of a server that takes no writes."""
_log = logging.getLogger(__name__)


class Leader:
    """Holds the right to conduct, or tries to get it."""

    def __init__(self, store: Store, lock_file: Path) -> None:
        self._store = store
        self._path = lock_file
        self._file: IO[bytes] | None = None
        self._connection: Connection | None = None
        self._checked_at = float("-inf")
        self._leads = False
        self._unasked = False
        """Whether it is logged that the lock file could not be asked."""
        self._lock = threading.Lock()

    def leads(self, now_mono: float) -> bool:
        """Say whether this service conducts; asks the lock at most once a second."""
        with self._lock:
            if now_mono - self._checked_at >= _CHECK_S:
                self._checked_at = now_mono
                led = self._leads
                self._leads = self._lock_file() if self._store.sqlite else self._lock_row()
                if self._leads and not led:
                    _log.info("this service conducts", extra={"action": "leader"})
            return self._leads

    def _lock_file(self) -> bool:
        if self._file is not None:
            return True
        try:
            self._file = self._take_file()
        except OSError as error:  # too many open files, a folder that takes none: asked again
            if not self._unasked:
                _log.error("the lock cannot be had: %s", error, extra={"action": "leader_unasked"})
            self._unasked = True
            return False
        self._unasked = False
        return self._file is not None

    def _take_file(self) -> IO[bytes] | None:
        stream = open_private(self._path)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        except OSError:
            stream.close()
            raise
        return stream

    def _lock_row(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._store.connect().execution_options(
                    isolation_level="AUTOCOMMIT"
                )
            query = _STILL if self._leads else _TRY
            found = self._connection.execute(query).scalar()
            if found is None:
                _log.warning("its server takes no writes", extra={"action": "leader_lost"})
                self._drop()
            return bool(found)
        except SQLAlchemyError as error:
            _log.warning("the lock is gone: %s", error, extra={"action": "leader_lost"})
            self._drop()
            return False

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Give the right back."""
        with self._lock:
            self._leads = False
            if self._file is not None:
                self._file.close()
                self._file = None
            if self._connection is not None:
                if self._store.sqlite is False:
                    self._unlock(self._connection)
                self._drop()

    @staticmethod
    def _unlock(connection: Connection) -> None:
        try:
            connection.execute(text("SELECT pg_advisory_unlock_all()"))
        except SQLAlchemyError as error:
            _log.info("nothing to unlock: %s", error, extra={"action": "leader_lost"})
