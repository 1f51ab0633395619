"""Is an open file still ours? For files kept open within a script that knows nothing of it.

A script may close every descriptor (`os.closerange`, as a daemon does), and the next file that it
opens takes the number: writing to it, or closing it, would be its harm. Nothing here raises but the
opening. Standard library only.
"""

import errno
import os
from pathlib import Path


class Descriptor:
    """A file that is open until it is closed, here or by the script.

    Args:
        path: of the file.
        flags: of `os.open`; it is closed in programs that are executed.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._closed = False
        self.number, self._place = _open(path, flags)
        if _stands_elsewhere(path, self._place):
            # A thread of the script's has closed it in between, and the number is another file's;
            # or this file system says so of any: again, for that happens to nobody twice.
            self.number, self._place = _open(path, flags)

    @property
    def is_ours(self) -> bool:
        """Whether the number stands for this file; a file system that is away does not deny it."""
        if self._closed:
            return False
        try:
            found = os.fstat(self.number)
        except OSError as error:
            return error.errno != errno.EBADF
        return _place(found) == self._place

    def close(self) -> bool:
        """Close the file, where it is ours still.

        Returns:
            Whether that was refused: a network file system may tell only now what it did not take.
            The number is free all the same.
        """
        ours, self._closed = self.is_ours, True
        if not ours:
            return False
        try:
            os.close(self.number)
        except OSError:
            return True
        return False


def _open(path: Path, flags: int) -> tuple[int, tuple[int, int]]:
    """Return the number of a file that is opened now, and the place of what stands behind it."""
    number = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        return number, _place(os.fstat(number))
    except OSError as error:
        if error.errno != errno.EBADF:  # else it was closed meanwhile, and may be another's now
            os.close(number)
        raise


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _stands_elsewhere(path: Path, place: tuple[int, int]) -> bool:
    try:
        return _place(os.stat(path)) != place
    except OSError:
        return False  # nobody can say
