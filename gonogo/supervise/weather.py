"""What if a file can be neither read nor written just now? It is weather; stdlib only.

A full disk, a read-only remount, a stale handle of a network file system: none of them says
anything of the run, so whoever looks or writes here goes on, says so once for each kind, and looks
again. What is worth more than telling (a request to end, how a run ended) may use the reserve: a
file of zeros that is given up when the disk is full, and empty ones beside it, for a disk (or a
quota) may have room for bytes and take no new file.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gonogo.files import create_plain

START_LIMIT_S = 60.0
"""How long a host may have no process, file or disk for a program: nothing of it has begun."""
SCARCE = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE,
})  # fmt: skip
"""Errors by which a host says that it has no room for a program just now."""
RESERVE_NAME = ".reserve"
RESERVE_BYTES = 2**20

TRIED_BYTES = 4096
_AGAIN_S = 0.2

_T = TypeVar("_T")


def takes_a_write(path: Path) -> bool:
    """Say whether a disk takes a small write; nothing of it stays.

    Args:
        path: of the file that is tried; a link or a pipe that a trainer has put there is removed,
            for nobody knows where the one leads, and the other would be waited for.
    """
    try:
        path.unlink(missing_ok=True)
        try:
            with path.open("xb", buffering=0) as stream:
                written = stream.write(b"\0" * TRIED_BYTES)
        finally:
            path.unlink(missing_ok=True)  # a full disk takes the name, if not the bytes
    except IsADirectoryError:
        return True  # somebody's, and says nothing of the disk
    except OSError:
        return False
    return written == TRIED_BYTES


class Weather:
    """Looks and writes that may fail; used from one thread.

    Args:
        log: where it is said, once for each kind and error number until it went well again.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[str] = set()
        self.failures = 0
        """How often something could not be looked at or written."""

    def tried(self, what: str, work: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `work` returns, or `otherwise` where the file system refused."""
        try:
            found = work()
        except OSError as error:
            self.note(what, error)
            return otherwise
        if what in self._said:
            self._said.discard(what)
            self._say(f"{what}: possible again")
        return found

    def at_length(self, what: str, work: Callable[[], _T], limit_s: float | None = None) -> _T:
        """Return what `work` returns; where the host has no room for it just now it is tried again.

        What keeps a program from beginning is no failure of its own.

        Raises:
            OSError: it is another's fault, or there was no room for `limit_s` (START_LIMIT_S).
        """
        give_up = time.monotonic() + (START_LIMIT_S if limit_s is None else limit_s)
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in SCARCE or time.monotonic() >= give_up:
                    raise
                self.note(what, error)
            time.sleep(_AGAIN_S)

    def note(self, what: str, error: OSError) -> None:
        """Count a failure, and say it where it is news."""
        self.failures += 1
        if what not in self._said:
            self._said.add(what)
            self._say(f"{what}: {error}")

    def _say(self, text: str) -> None:
        """Log; on a full disk the log itself may refuse, and logging raises nothing."""
        self._log.warning("%s", text, extra={"action": "weather"})


class Reserve:
    """Room for the last words of a run, held from its start.

    Args:
        run_dir: the run's directory.
        name: of the file; each node of a run has its own.
        size: bytes of room.
    """

    def __init__(self, run_dir: Path, name: str = RESERVE_NAME, size: int = RESERVE_BYTES) -> None:
        self._path, self._size = run_dir / name, size

    def hold(self, files: int = 0) -> None:
        """Take the room.

        Args:
            files: how many small files it is for, besides one.

        Raises:
            OSError: there is none.
        """
        with create_plain(self._path) as stream:
            os.posix_fallocate(stream.fileno(), 0, self._size)
        for number in range(files):
            self._path.with_name(f"{self._path.name}.{number}").touch()

    def free(self) -> None:
        """Give all of it up; what is not there changes nothing.

        Raises:
            OSError: the file system takes no change at all.
        """
        for path in self._held():
            path.unlink(missing_ok=True)

    def write(self, work: Callable[[], _T]) -> _T:
        """Do what must be written; where the disk is full, again in the room held for it.

        No more of it is given up than that takes: what is written later needs the rest.

        Raises:
            OSError: it could not be written at all.
        """
        try:
            return work()
        except OSError:
            for path in self._held():
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    return work()
            raise

    def _held(self) -> list[Path]:
        """Return the reserve's files, the room before the empty ones."""
        return [self._path, *self._path.parent.glob(f"{self._path.name}.*")]
