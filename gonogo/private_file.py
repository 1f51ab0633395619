"""How is a file opened that only we may lock? Standard library only.

Whoever may read a file may lock it, and `flock` knows no owner: a lock that others can open is one
that they can hold for ever.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path) -> IO[bytes]:
    """Open a file of ours for writing at its end, made if it is not there; others may not open it.

    One that a release before left open to all is closed to them.

    Raises:
        OSError: it can be neither opened nor made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    stream = os.fdopen(os.open(path, flags, 0o600), "ab")
    close_to_others(stream.fileno())
    return stream


def close_to_others(file: Path | int) -> None:
    """Let nobody else open a file of ours, where it is there and the file system has modes."""
    with suppress(OSError):
        found = os.stat(file)
        if found.st_uid == os.geteuid() and found.st_mode & _OF_OTHERS:
            os.chmod(file, stat.S_IMODE(found.st_mode) & ~_OF_OTHERS)
