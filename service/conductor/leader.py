"""Leader election: a file lock beside SQLite, an advisory lock on PostgreSQL.

The advisory lock lives on a connection of its own. When that connection dies, or its server takes
writes no more, another service takes over within a second or two.
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
            stream = open_private(self._path)
        except OSError as error:  # asked again in a second
            _log.error("the lock cannot be had: %s", error, extra={"action": "leader_unasked"})
            return False
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another service holds it
            stream.close()
            return False
        self._file = stream
        return True

    def _lock_row(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._store.connect().execution_options(
                    isolation_level="AUTOCOMMIT"
                )
            found = self._connection.execute(_STILL if self._leads else _TRY).scalar()
        except SQLAlchemyError as error:
            _log.warning("the lock is gone: %s", error, extra={"action": "leader_lost"})
            found = None
        if found is None:
            self._drop()
        return bool(found)

    def _drop(self) -> None:
        """Close the connection, and with it give the advisory lock back."""
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
            self._drop()
