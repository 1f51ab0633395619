"""How does the first of several writers, and no other, give a file its name? Stdlib only.

By a hard link, which is made unless the name is there. Not every file system has them (exFAT,
object stores behind FUSE, some network shares): there the folder is locked for a look and a rename,
so that writers of one host still see each other.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def place_first(spare: Path, path: Path) -> bool:
    """Give a written file a name unless the name is there; True when this call gave it.

    Args:
        spare: the file, in the folder of `path`; it is the caller's to remove.

    Raises:
        OSError: the file system refuses just now.
    """
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
        with suppress(OSError):  # what locks no folder has no second writer that could be seen
            fcntl.flock(folder, fcntl.LOCK_EX)
        if path.is_symlink() or path.exists():
            return False
        spare.replace(path)
    finally:
        os.close(folder)
    return True
