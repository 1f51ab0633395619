"""Limits the ranks' logs, and reserves disk space for their last lines. Standard library only.

A log over CAP_BYTES keeps its beginning and its end. The middle becomes a hole in the file, which
takes no space and begins with a line that says so. Offsets stay valid for writers and readers.

Most programs die when a print fails. So ROOM_BYTES are allocated behind the end of each log.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

CAP_BYTES = 256 * 2**20
HEAD_BYTES = 2**20
TAIL_BYTES = CAP_BYTES // 2
ROOM_BYTES = 2**20
LOOK_EVERY_S = 5.0
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_AS_IT_IS = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class LogCap:
    """The logs of one run's ranks.

    Args:
        run_dir: the run's directory.
        cap_bytes, head_bytes, tail_bytes: most space of a log; what is kept of it.
        room_bytes: space to reserve behind its end.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        cap_bytes: int = CAP_BYTES,
        head_bytes: int = HEAD_BYTES,
        tail_bytes: int = TAIL_BYTES,
        room_bytes: int = ROOM_BYTES,
    ) -> None:
        self._dir, self._cap = run_dir, cap_bytes
        self._head, self._tail, self._room = head_bytes, tail_bytes, room_bytes
        self._due = float("-inf")
        self._held: dict[Path, int] = {}
        """Log → end of the space reserved for it."""

    def tend(self, now: float) -> None:
        """Check every log, when it is time.

        Args:
            now: monotonic seconds.

        Raises:
            OSError: one cannot be read or changed.
        """
        if now < self._due:
            return
        self._due = now + LOOK_EVERY_S
        for path in self._logs():
            self._reserve_room(path)
            if path.stat().st_blocks * 512 > self._cap:
                self._cut_middle(path)

    def free_room(self) -> None:
        """Give the reserved space back: nobody writes any more.

        Raises:
            OSError: the file system takes no change.
        """
        for path in self._logs():
            descriptor = os.open(path, _AS_IT_IS)
            try:  # after open: a network file system may report an old size before
                os.ftruncate(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)

    def _logs(self) -> Iterator[Path]:
        """Yield the logs that are regular files."""
        paths = (*self._dir.glob("rank*.log"), *self._dir.glob("torchrun*.log"))
        return (path for path in paths if path.is_file() and not path.is_symlink())

    def _reserve_room(self, path: Path) -> None:
        """Reserve space unless half of it is left; a file system may not support that."""
        size = path.stat().st_size
        if size + self._room // 2 <= self._held.get(path, 0):
            return
        descriptor = os.open(path, _AS_IT_IS)
        try:
            _allocate(descriptor, _KEEP_SIZE, size, self._room)
            self._held[path] = size + self._room
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _cut_middle(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            end = (os.fstat(descriptor).st_size - self._tail) // _PAGE * _PAGE
            length = end - self._head
            if length <= 0:
                return
            _allocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, self._head, length)
            said = f"\ngonogo: {length} bytes were let go here: a log takes {self._cap} at most\n"
            os.pwrite(descriptor, said.encode(), self._head)
        finally:
            os.close(descriptor)


def _allocate(descriptor: int, mode: int, start: int, length: int) -> None:
    """Allocate space for a part of a file, or free it; the file's size stays.

    Raises:
        OSError: the disk is full, or the file system does neither.
    """
    done = _libc.fallocate(descriptor, mode, ctypes.c_longlong(start), ctypes.c_longlong(length))
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
