"""A file that waits for a full disk: what it refuses goes before what comes next, torn nowhere."""

import errno
import os
import stat
import sys
from pathlib import Path

from nsa.heartbeat import ends_torn

KEPT_BYTES = 2**20


class PatientFile:
    """Appends whole rows or records to a file; never raises, nor waits, for what refuses them.

    They wait in memory; beyond a megabyte the file ends. Both are told once on standard error.

    Args:
        path: The file, made by the first of them, or a pipe that somebody reads.
        header: What a new file begins with.
    """

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self._path, self._header = path, header
        self._waiting = b""
        self._begun = self._told = self._ended = False

    def append(self, data: bytes) -> None:
        """Write, or keep."""
        if self._ended:
            return
        self._waiting += data
        try:
            with open(self._path, "ab", buffering=0, opener=_open_at_once) as file:
                found = os.fstat(file.fileno())
                if found.st_size == 0 and (stat.S_ISREG(found.st_mode) or not self._begun):
                    self._waiting = self._header + self._waiting.removeprefix(self._header)
                elif not self._begun and self._is_torn():
                    self._waiting = b"\n" + self._waiting  # else an earlier process's row goes on
                self._begun = True
                written = file.write(self._waiting)
                if written is None:
                    raise BlockingIOError(errno.EAGAIN, "the pipe is full")
                self._waiting = self._waiting[written:]
        except OSError as error:
            self._ended = len(self._waiting) > KEPT_BYTES
            if self._ended or not self._told:
                does = "ends here" if self._ended else "waits in memory"
                print(f"{self._path.name} {does}: {error}", file=sys.stderr)
            self._told = True
            if self._ended:
                self._waiting = b""

    def _is_torn(self) -> bool:
        with self._path.open("rb", buffering=0) as file:
            return ends_torn(file.fileno())

    def close(self) -> None:
        """Write what waits, if the disk takes it now."""
        if self._waiting and not self._ended:
            self.append(b"")
            if self._waiting:
                print(f"the end of {self._path.name} is lost", file=sys.stderr)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody reads refuses, and is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
