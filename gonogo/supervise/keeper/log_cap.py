"""How large may a rank's log become? The keeper lets its middle go; standard library only.

A program that prints for days fills the disk that its checkpoints need. A log that takes more than
CAP_BYTES keeps its beginning (how it was started) and its end (how it is, and why it ends); between
them a hole is made in the file, which takes no room and begins with a line that says so. Nobody's
place in the file moves: the program goes on appending, whoever reads goes on where it was. A file
system that makes no holes keeps the whole log.
"""

import ctypes
import os
from pathlib import Path

CAP_BYTES = 256 * 2**20
HEAD_BYTES = 2**20
TAIL_BYTES = CAP_BYTES // 2
LOOK_EVERY_S = 5.0
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class LogCap:
    """Keeps the logs of one run's ranks from growing for ever.

    Args:
        run_dir: the run's directory.
        cap_bytes, head_bytes, tail_bytes: how much room one may take; what is kept of it.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        cap_bytes: int = CAP_BYTES,
        head_bytes: int = HEAD_BYTES,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        self._dir, self._cap = run_dir, cap_bytes
        self._head, self._tail = head_bytes, tail_bytes
        self._due = float("-inf")

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
        for path in (*self._dir.glob("rank*.log"), self._dir / "torchrun.log"):
            if path.exists() and path.stat().st_blocks * 512 > self._cap:
                self._let_go(path)

    def _let_go(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # not to append: it writes into it
        try:
            end = (os.fstat(descriptor).st_size - self._tail) // _PAGE * _PAGE
            length = end - self._head
            if length <= 0:
                return
            _punch(descriptor, self._head, length)
            said = f"\ngonogo: {length} bytes were let go here: a log takes {self._cap} at most\n"
            os.pwrite(descriptor, said.encode(), self._head)
        finally:
            os.close(descriptor)


def _punch(descriptor: int, start: int, length: int) -> None:
    """Give a part of a file back to the file system; its size stays.

    Raises:
        OSError: the file system makes no holes.
    """
    done = _libc.fallocate(
        descriptor,
        _KEEP_SIZE | _PUNCH_HOLE,
        ctypes.c_longlong(start),
        ctypes.c_longlong(length),
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
