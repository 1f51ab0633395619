"""How does the first of several writers, and no other, give a file its name? Stdlib only.

By a hard link, which is made unless the name is there. Not every file system has them (exFAT,
object stores behind FUSE, some network shares): there the folder is locked for a look and a rename,
so that writers of one host still see each other.
"""

import errno
import fcntl
import os
import time
from pathlib import Path

LOCK_S = 5.0
"""How long a writer waits for others of its host: a look and a rename take them far less."""
_PAUSE_S = 0.001
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def place_first(spare: Path, path: Path) -> bool:
    """Give a written file a name unless the name is there; True when this call gave it.

    File and name are on the disk then: a power cut would leave an empty file of that name.

    Args:
        spare: the file, in the folder of `path`; it is the caller's to remove.

    Raises:
        OSError: the file system refuses just now.
    """
    _sync(spare, os.O_RDONLY)
    placed = _linked(spare, path)
    if placed:
        sync_folder(path.parent)
    return placed


def _linked(spare: Path, path: Path) -> bool:
    try:
        os.link(spare, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _renamed(spare, path)
    return True


def _renamed(spare: Path, path: Path) -> bool:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(folder)
        if path.is_symlink() or path.exists():
            return False
        spare.replace(path)
    finally:
        os.close(folder)
    return True


def _lock(folder: int) -> None:
    """Lock a folder, unless somebody holds it for ever (a trainer its own) or it has no locks."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_S)  # flock itself waits for ever or not at all
        except OSError:
            return
        else:
            return


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable: a file's own fsync does not cover its name.

    Raises:
        OSError: the disk refuses.
    """
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
