"""A file that waits for a full disk: what the disk refuses is written before what comes next."""

import sys
from pathlib import Path

from nsa.heartbeat import ends_torn

KEPT_BYTES = 2**20


class PatientFile:
    """Appends whole rows or records to a file; never raises for what refuses them.

    They wait in memory; beyond a megabyte the file ends. Both are printed once on standard error.

    Args:
        path: The file, made by the first of them.
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
            with open(self._path, "a+b", buffering=0) as file:
                if file.tell() == 0:
                    self._waiting = self._header + self._waiting.removeprefix(self._header)
                elif not self._begun and ends_torn(file.fileno()):
                    self._waiting = b"\n" + self._waiting  # else it would extend an older row
                self._begun = True
                self._waiting = self._waiting[file.write(self._waiting) :]
        except OSError as error:
            self._ended = len(self._waiting) > KEPT_BYTES
            if self._ended or not self._told:
                does = "ends here" if self._ended else "waits in memory"
                print(f"{self._path.name} {does}: {error}", file=sys.stderr)
            self._told = True
            if self._ended:
                self._waiting = b""

    def close(self) -> None:
        """Write what waits, if the disk takes it now."""
        if self._waiting and not self._ended:
            self.append(b"")
            if self._waiting:
                print(f"the end of {self._path.name} is lost", file=sys.stderr)
