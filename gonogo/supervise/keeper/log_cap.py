"""Limits the size of the ranks' logs. Standard library only.

A log over CAP_BYTES keeps its beginning and its end. The middle becomes a hole in the file, which
takes no space and begins with a line that says so. Offsets stay valid for writers and readers.
"""

import ctypes
import os
from pathlib import Path

CAP_BYTES = 256 * 2**20
HEAD_BYTES = 2**20
LOOK_EVERY_S = 5.0
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class LogCap:
    """The logs of one run's ranks.

    Args:
        cap_bytes: most space of a log; half of it is kept of the end.
        head_bytes: how much is kept of the beginning.
    """

    def __init__(
        self, run_dir: Path, *, cap_bytes: int = CAP_BYTES, head_bytes: int = HEAD_BYTES
    ) -> None:
        self._dir, self._cap, self._head = run_dir, cap_bytes, head_bytes
        self._due = float("-inf")

    def tend(self, now: float) -> None:
        """Check every log, when it is time."""
        if now < self._due:
            return
        self._due = now + LOOK_EVERY_S
        for path in (*self._dir.glob("rank*.log"), *self._dir.glob("torchrun*.log")):
            is_log = path.is_file() and not path.is_symlink()
            if is_log and path.stat().st_blocks * 512 > self._cap:
                self._cut_middle(path)

    def _cut_middle(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            end = (os.fstat(descriptor).st_size - self._cap // 2) // _PAGE * _PAGE
            length = end - self._head
            if length <= 0:
                return
            done = _libc.fallocate(
                descriptor,
                _KEEP_SIZE | _PUNCH_HOLE,
                ctypes.c_longlong(self._head),
                ctypes.c_longlong(length),
            )
            if done != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            said = f"\ngonogo: {length} bytes were let go here: a log takes {self._cap} at most\n"
            os.pwrite(descriptor, said.encode(), self._head)
        finally:
            os.close(descriptor)
