"""Where do lines go, and what if the disk refuses them? One file, appended to, by one process.

Guarantees: `append`, `show` and `close` never raise; lines stand in the file in the order given,
whole; what the file system refuses (a full disk) is kept, up to KEPT_BYTES, and written before the
next line, so that a disk that was full for a while costs nothing; who leaves waits LAST_S for it.
Beyond that the oldest are lost: the gap in `seq` then tells it. A descriptor that the script has
closed behind our back is opened anew. Not guaranteed: durability, nor that another host sees a line
before `show`.
"""

import fcntl
import os
import time
from pathlib import Path

from gonogo.trainer.descriptor import Descriptor

KEPT_BYTES = 2**20
LAST_S = 10.0
"""How long a program that is leaving waits for a disk to take its last lines."""
ATTACHED = ".attached"
"""File of a run directory: the program speaks for itself, whoever read its output falls silent."""
OBSERVED = ".observed"
"""File of a run directory: the observer writes for the program, which looks for no `.HALT`."""
OBSERVABLE = ".observable"
"""File of a run directory: the program has made an optimizer, whose steps the observer sees."""
READ = ".read"
"""File of a run directory while its program's output is read: the program looks for no `.HALT`."""
SILENCED = ".silenced"
"""File of a run directory: a process found the file of its rank taken, and says nothing there."""
SHOW_EVERY_S = 1.0
"""How often the watcher on another host is shown what was written."""
_LOCK_WAIT_S = 5.0
_POLL_S = 0.05


class Taken(Exception):
    """another process writes this rank's lines"""


class LineFile:
    """The heartbeat file of one rank.

    Args:
        path: made when it is not there.

    Raises:
        Taken: another process has held the file for five seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten = b""
        self._torn = False
        """Whether `_unwritten` begins in the middle of a line."""
        self._file: Descriptor | None = None
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
            file = self._file
            if file is None or not file.is_ours:
                file = self._open(0.0)
            written = os.write(file.number, self._unwritten)
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
        """Let other hosts see what is written; it may take as long as a network file system takes.

        Their clients keep what an open file was given for half a minute (NFS), unless it is synced.
        """
        file = self._file
        if self._shown or file is None or not file.is_ours:
            return
        self._shown = True
        try:
            os.fdatasync(file.number)
        except OSError:
            self.failures += 1

    def finish(self) -> None:
        """Have what still waits written, where the disk takes it in time; then let the file go."""
        give_up = time.monotonic() + LAST_S
        while self._unwritten and time.monotonic() < give_up:
            time.sleep(_POLL_S)
            self.append(b"")
        self.close()

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, None
        if file is not None:
            self.failures += file.close()

    def _forget_oldest(self) -> None:
        """Keep at most KEPT_BYTES; a line of which a part is written stays whole."""
        if len(self._unwritten) <= KEPT_BYTES:
            return
        head = self._unwritten.find(b"\n") + 1 if self._torn else 0
        cut = self._unwritten.find(b"\n", len(self._unwritten) - KEPT_BYTES) + 1
        self._unwritten = self._unwritten[:head] + self._unwritten[max(cut, head) :]

    def _open(self, wait_s: float) -> Descriptor:
        self._file = None
        file = Descriptor(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(file.number, wait_s)
            if _ends_torn(file.number) and not self._torn:
                self._unwritten = b"\n" + self._unwritten
                self._torn = True
        except BaseException:
            file.close()
            raise
        self._file = file
        return file


def _lock(fd: int, wait_s: float) -> None:
    """Hold the file as long as this process has it open; without locks (some NFS) go on."""
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
    """Whether an earlier process left a line without its end."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
