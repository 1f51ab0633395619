"""What if the disk refuses for a moment what a rank needs to begin? It is asked for a minute.

A stale handle, a full disk, a host without room for one more file: none of them is the run's fault,
and nothing of it has begun. Nothing here needs torch.
"""

import errno
import sys
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 60.0
_POLL_S = 0.2
_PASSES = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE,
})  # fmt: skip
"""Errors that say nothing of what is asked for, but of the disk or the host just now."""

_T = TypeVar("_T")


def at_length(what: str, work: Callable[[], _T]) -> _T:
    """Return what `work` returns, as soon as the disk lets it; that it waits is said once.

    Raises:
        OSError: it is no such error, or the disk has refused for a minute.
    """
    give_up = time.monotonic() + LIMIT_S
    told = False
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSES or time.monotonic() >= give_up:
                raise
            if not told:
                print(f"{what} is waited for: {error}", file=sys.stderr)
            told = True
        time.sleep(_POLL_S)
