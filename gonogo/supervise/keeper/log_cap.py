"""What room does a rank's log have? Not all of the disk, and some where that is full; stdlib only.

A program that prints for days fills the disk that its checkpoints need. A log that takes more than
CAP_BYTES keeps its beginning (how it was started) and its end (how it is, and why it ends); between
them a hole is made in the file, which takes no room and begins with a line that says so. Nobody's
place in the file moves: the program goes on appending, whoever reads goes on where it was. A file
system that makes no holes keeps the whole log.

A program whose print is refused ends by it, unless it expects that. So behind the end of each log
ROOM_BYTES are held, where the file system can: what is printed on a disk that is full goes there.
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
    """Keeps the logs of one run's ranks from growing for ever, and holds room for them.

    Args:
        run_dir: the run's directory.
        cap_bytes, head_bytes, tail_bytes: how much room one may take; what is kept of it.
        room_bytes: how much is held for what comes.
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
        """Log → up to where room is held for it."""

    def tend(self, now: float) -> None:
        """Look at every log, when it is time.

        Args:
            now: monotonic seconds.

        Raises:
            OSError: one cannot be looked at, or made smaller.
        """
        if now < self._due:
            return
        self._due = now + LOOK_EVERY_S
        for path in self._logs():
            self._hold_room(path)
            if path.stat().st_blocks * 512 > self._cap:
                self._let_go(path)

    def free_room(self) -> None:
        """Give up what is held behind the end of each log: nobody writes into it any more.

        Raises:
            OSError: the file system takes no change.
        """
        for path in self._logs():
            descriptor = os.open(path, _AS_IT_IS)
            try:  # opened first: a network file system tells a size of seconds ago until then
                os.ftruncate(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)

    def _logs(self) -> Iterator[Path]:
        """Yield the logs; a pipe or a link of a program's own under such a name is none."""
        paths = (*self._dir.glob("rank*.log"), *self._dir.glob("torchrun*.log"))
        return (path for path in paths if path.is_file() and not path.is_symlink())

    def _hold_room(self, path: Path) -> None:
        """Hold room for what comes, unless half of it is left; a disk may have none, or hold none.

        Its size stays, and it is written to as before.
        """
        size = path.stat().st_size
        if size + self._room // 2 <= self._held.get(path, 0):
            return
        descriptor = os.open(path, _AS_IT_IS)
        try:
            _allocate(descriptor, _KEEP_SIZE, size, self._room)
            self._held[path] = size + self._room
        except OSError:  # what was held is there all the same
            return
        finally:
            os.close(descriptor)

    def _let_go(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # not to append: it writes into it
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
    """Hold room for a part of a file, or give it back; the file's size stays.

    Raises:
        OSError: the disk is full, or the file system does neither.
    """
    done = _libc.fallocate(descriptor, mode, ctypes.c_longlong(start), ctypes.c_longlong(length))
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
