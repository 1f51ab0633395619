"""Disk space that is held for the records of a run's end. Standard library only."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gonogo.files import create_plain

RESERVE_NAME = ".reserve"
PIECES, PIECE_BYTES = 8, 2**17
"""Each piece is a file, since a disk may lack inodes as well as bytes."""

_T = TypeVar("_T")


class Reserve:
    """Files of zeros that are deleted, one by one, when the disk is full.

    Args:
        run_dir: the run's directory.
        name: how the files' names begin; each node and each rank has its own.
        pieces: how many files.
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
