"""Small files that are written whole or not at all, also on a full disk. Standard library only.

The same promise as `gonogo.rundir.save_json`, without pydantic.
"""

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gonogo.files import NoPlainFile, create_plain, place_first, read_small, replace_file


def save_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically and durably, over what was there."""
    replace_file(path, _encoded(value))


def create_json(path: Path, value: Any) -> bool:
    """Write a JSON file unless there is one; return whether this call created it."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        temporary.write_bytes(_encoded(value))
        return place_first(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def load_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it is missing, too large, or not an object."""
    try:
        found = json.loads(read_small(path))
    except (FileNotFoundError, NoPlainFile, ValueError, RecursionError):
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return None
    return found if isinstance(found, dict) else None


def _encoded(value: Any) -> bytes:
    return f"{json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)}\n".encode()


RESERVE_NAME = ".reserve"
PIECES, PIECE_BYTES = 8, 2**17
"""Each piece is a file, since a disk may lack inodes as well as bytes."""

_T = TypeVar("_T")


class Reserve:
    """Files of zeros that are deleted, one by one, when the disk is full.

    Each node and each rank has its own `name`.
    """

    def __init__(self, run_dir: Path, name: str = RESERVE_NAME, pieces: int = PIECES) -> None:
        self._dir, self._name, self._count = run_dir, name, pieces

    def hold(self) -> None:
        """Take the space."""
        for number in range(self._count):
            with create_plain(self._dir / f"{self._name}.{number}") as stream:
                os.posix_fallocate(stream.fileno(), 0, PIECE_BYTES)

    def free(self) -> None:
        """Give all of it back."""
        for path in self._dir.glob(f"{self._name}.*"):  # those of killed wrappers, too
            path.unlink(missing_ok=True)

    def write(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns; while the disk refuses, free a piece and repeat it."""
        for path in list(self._dir.glob(f"{self._name}.[0-9]")):
            try:
                return work()
            except OSError:
                path.unlink(missing_ok=True)
        return work()
