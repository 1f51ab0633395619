"""A file of rows or records that ends where the disk refuses it, and ends no training."""

import sys
from pathlib import Path

from nsa.heartbeat import ends_torn


class PatientFile:
    """Appends whole rows or records; never raises for a disk that refuses them.

    A refusal is printed once on standard error, and the file ends there.

    Args:
        path: The file, made by the first of them.
        header: What a new file begins with.
    """

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self._path, self._header = path, header
        self._begun = self._ended = False

    def append(self, data: bytes) -> None:
        """Write, unless the file has ended."""
        if self._ended:
            return
        try:
            with open(self._path, "a+b", buffering=0) as file:
                if file.tell() == 0:
                    data = self._header + data
                elif not self._begun and ends_torn(file.fileno()):
                    data = b"\n" + data  # else it would extend an older row
                self._begun = True
                if file.write(data) < len(data):
                    raise OSError("a part was written")
        except OSError as error:
            self._ended = True
            print(f"{self._path.name} ends here: {error}", file=sys.stderr)
