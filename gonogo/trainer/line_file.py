"""The heartbeat file of one rank: one process appends lines to it.

`append`, `show` and `close` never raise; lines are whole and in order. Lines that a full disk
refuses are kept, up to KEPT_BYTES, and written later. Lost lines show as a gap in `seq`.
"""

import fcntl
import os
import time
from pathlib import Path

KEPT_BYTES = 2**20
LAST_S = 10.0
"""How long a program waits for the disk when it leaves."""
ATTACHED = ".attached"
"""File of a run directory: the program writes heartbeats itself."""
OBSERVED = ".observed"
"""File of a run directory: the observer writes them; the program does not look for `.HALT`."""
OBSERVABLE = ".observable"
"""File of a run directory: the program has an optimizer, so the observer can see its steps."""
READ = ".read"
"""File of a run directory: the output is read; the program does not look for `.HALT`."""
SILENCED = ".silenced"
"""File of a run directory: a process found the file of its rank taken and writes nothing."""
SHOW_EVERY_S = 1.0
"""How often lines are synced for a watcher on another host."""
_LOCK_WAIT_S = 5.0
_POLL_S = 0.05


class Taken(Exception):
    """another process writes this rank's lines"""


class LineFile:
    """The heartbeat file of one rank.

    Raises:
        Taken: another process has held the file for five seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten = b""
        self._torn = False
        """Whether `_unwritten` begins in the middle of a line."""
        self._fd: int | None = None
        self._shown = True
        """Whether other hosts have been shown all that is written."""
        self.failures = 0
        """Writes that were refused so far."""
        try:
            self._open(_LOCK_WAIT_S)
        except OSError:
            self.failures += 1

    def append(self, lines: bytes) -> None:
        """Append complete lines, after those that still wait."""
        self._unwritten += lines
        try:
            fd = self._open(0.0) if self._fd is None else self._fd
            written = os.write(fd, self._unwritten)
        except (OSError, Taken):
            self.failures += 1
            self._forget_oldest()
            return
        self._shown = False
        self.failures += written < len(self._unwritten)
        if written:
            self._torn = self._unwritten[written - 1 : written] != b"\n"
        self._unwritten = self._unwritten[written:]

    def show(self) -> None:
        """Sync what is written, so that other hosts see it; NFS keeps it for half a minute."""
        if self._shown or self._fd is None:
            return
        self._shown = True
        try:
            os.fdatasync(self._fd)
        except OSError:
            self.failures += 1

    def finish(self) -> None:
        """Write what still waits, if the disk takes it in time; then close the file."""
        give_up = time.monotonic() + LAST_S
        while self._unwritten and time.monotonic() < give_up:
            time.sleep(_POLL_S)
            self.append(b"")
        self.close()

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError:
            self.failures += 1

    def _forget_oldest(self) -> None:
        """Keep at most KEPT_BYTES; a line of which a part is written stays whole."""
        if len(self._unwritten) <= KEPT_BYTES:
            return
        head = self._unwritten.find(b"\n") + 1 if self._torn else 0
        cut = self._unwritten.find(b"\n", len(self._unwritten) - KEPT_BYTES) + 1
        self._unwritten = self._unwritten[:head] + self._unwritten[max(cut, head) :]

    def _open(self, wait_s: float) -> int:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd, wait_s)
            if _ends_torn(fd) and not self._torn:
                self._unwritten = b"\n" + self._unwritten
                self._torn = True
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd


def _lock(fd: int, wait_s: float) -> None:
    """Lock the file while this process has it open; file systems without locks are accepted."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise Taken from None
            time.sleep(_POLL_S)
        except OSError:
            return None


def _ends_torn(fd: int) -> bool:
    """Whether an earlier process left a torn line."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
