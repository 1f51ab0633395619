"""Follow a log that a program writes: the new lines, and the states of a progress bar.

Standard library only. Not covered: a log that somebody renames or removes while it is written.
"""

from collections.abc import Iterator
from pathlib import Path

from gonogo.files import next_data, read_plain

LINE_BYTES = 8192
"""Of a longer line the rest is not looked at."""
_READ_BYTES = 2**18


class LogLines:
    """The lines of a log.

    Args:
        path: of the log.
        begin: bytes at its start that are not read.
    """

    def __init__(self, path: Path, begin: int) -> None:
        self._path, self._offset = path, begin
        self.rest = b""  # the last line, which has no end yet
        self._whole: list[bytes] = []  # lines that were not given yet, the last one first
        self.is_refused = False  # whether the disk refused the log at the last look

    def lines(self) -> Iterator[bytes]:
        """Yield the new lines; a progress bar ends its lines with carriage returns."""
        while self._whole or (chunk := self._more()):
            if not self._whole:
                *whole, rest = (self.rest + chunk).replace(b"\r", b"\n").split(b"\n")
                self.rest = rest[:LINE_BYTES]
                self._whole = [line for line in reversed(whole) if line]
                continue
            yield self._whole.pop()

    def _more(self) -> bytes:
        try:
            with read_plain(self._path) as stream:  # a hole of it may be the keeper's
                self._offset = stream.seek(next_data(stream.fileno(), self._offset))
                chunk = stream.read(_READ_BYTES)
        except OSError as error:
            self.is_refused = not isinstance(error, FileNotFoundError)
            return b""
        self.is_refused = False
        self._offset += len(chunk)
        return chunk
