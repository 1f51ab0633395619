"""The heartbeat file of one rank: one process appends lines to it.

`append`, `show` and `close` never raise; lines are whole and in order. Lines that a full disk
refuses are kept, up to KEPT_BYTES, and written later. Lost lines show as a gap in `seq`. Each write
first checks that the descriptor is still our file, because a script may have closed it.
"""

import errno
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


class Descriptor:
    """A file that is open until it is closed, here or by the script.

    Args:
        path: of the file.
        flags: of `os.open`.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._inode, self._closed = _inode(os.fstat(self.number)), False

    @property
    def is_ours(self) -> bool:
        """Whether the number still stands for this file; a silent file system does not deny it."""
        if self._closed:
            return False
        try:
            return _inode(os.fstat(self.number)) == self._inode
        except OSError as error:
            return error.errno != errno.EBADF

    def close(self) -> bool:
        """Close the file, if it is ours still; return whether the file system reported an error."""
        ours, self._closed = self.is_ours, True
        try:
            if ours:
                os.close(self.number)
        except OSError:
            return True
        return False


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


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
        """Sync what is written, so that other hosts see it; NFS keeps it for half a minute."""
        file = self._file
        if self._shown or file is None or not file.is_ours:
            return
        self._shown = True
        try:
            os.fdatasync(file.number)
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
