"""Errors of the host that pass: a full disk, a stale network file, no free process. Stdlib only.

Such an error says nothing about the run. The caller continues, logs the error once, and tries
again.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

START_LIMIT_S = 60.0
"""How long a program that has not begun yet waits for a process, a file or a disk."""
SCARCE = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE,
})  # fmt: skip
"""Errors that may pass."""

TRIED_BYTES = 4096
_AGAIN_S = 0.2

_T = TypeVar("_T")


class TransientErrors:
    """Runs calls that may fail for a while, and logs that once; used from one thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failing: set[str] = set()
        self.failures = 0
        """How many calls have failed."""

    def tried(self, what: str, work: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `work` returns, or `otherwise` after an OSError."""
        try:
            found = work()
        except OSError as error:
            self.note(what, error)
            return otherwise
        if what in self._failing:
            self._failing.discard(what)
            self._say(f"{what}: possible again")
        return found

    def retried(self, what: str, work: Callable[[], _T], limit_s: float | None = None) -> _T:
        """Return what `work` returns; repeat it while the host has no room for it."""
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
        """Count a failure, and log the first one of its kind."""
        self.failures += 1
        if what not in self._failing:
            self._failing.add(what)
            self._say(f"{what}: {error}")

    def _say(self, text: str) -> None:
        self._log.warning("%s", text, extra={"action": "transient_error"})


def takes_a_write(path: Path) -> bool:
    """Return whether a disk accepts a small file at `path`; the file is removed again."""
    try:
        path.unlink(missing_ok=True)
        try:
            with path.open("xb", buffering=0) as stream:
                written = stream.write(b"\0" * TRIED_BYTES)
        finally:
            path.unlink(missing_ok=True)
    except IsADirectoryError:
        return True  # somebody's folder says nothing about the disk
    except OSError:
        return False
    return written == TRIED_BYTES


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread can be started for {name}") from error
    return thread
