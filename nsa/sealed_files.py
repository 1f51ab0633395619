"""Which bytes were written? Files with their size and SHA-256, taken while they are written."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast


def write_sealed(
    folder: Path,
    writers: Mapping[str, Callable[[BinaryIO], Any]],
    after_file: Callable[[Path], None],
) -> dict[str, Any]:
    """Write files, durably, and return their seals by name.

    Args:
        folder: where they go.
        writers: what fills each, by name.
        after_file: called with each once it is written and its digest is taken.

    Raises:
        OSError: the file system refused.
    """
    files = {}
    for name, write in writers.items():
        files[name] = _write(folder / name, write)
        after_file(folder / name)
    return files


def _write(file: Path, write: Callable[[BinaryIO], Any]) -> dict[str, Any]:
    """Write one file through Python's, and raise what the file system says.

    torch tells a full disk as an unexpected position: it goes on to close its archive.
    """
    with file.open("wb") as opened:
        digested = _Digested(opened)
        try:
            write(cast(BinaryIO, digested))
        except RuntimeError:
            if digested.refused is not None:
                raise digested.refused from None
            raise
        opened.flush()
        os.fsync(opened.fileno())
    return {"bytes": digested.bytes_written, "sha256": digested.digest.hexdigest()}


class _Digested:
    """A file that is written from its beginning to its end, and known when it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes_written = 0
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        """Write and take note."""
        self.digest.update(data)
        try:
            written = self._file.write(data)
        except OSError as refused:
            self.refused = refused
            raise
        self.bytes_written += written
        return written

    def flush(self) -> None:
        """Hand on."""
        self._file.flush()


def seal_of(file: Path) -> dict[str, Any]:
    """The seal of a file as it is now."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
