"""A file system that fails on demand, in every Python process that finds this on its path.

While the file that `TEST_FAILING` names exists, every access to a path below the folder
`TEST_BELOW` fails with the error whose number is in the file. This covers opening, looking,
renaming, linking and removing, and reads and writes of open files, which are Python's own.
"""

import _pyio
import builtins
import functools
import io
import os

_FLAG, _BELOW = os.environ.get("TEST_FAILING"), os.environ.get("TEST_BELOW")
_stat, _open, _read, _readlink = os.stat, os.open, os.read, os.readlink
_close = os.close


def _number():
    try:
        descriptor = _open(_FLAG, os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(_read(descriptor, 16) or b"5")
    finally:
        _close(descriptor)


def _is_below(path):
    if isinstance(path, int):
        try:
            path = _readlink(f"/proc/self/fd/{path}")
        except OSError:
            return False
    try:
        return os.fsdecode(path).startswith(_BELOW)
    except TypeError:
        return False


def _failing(real, name):
    @functools.wraps(real)
    def call(*args, **named):
        if args and any(
            _is_below(arg)
            for place, arg in enumerate(args[:2])
            if isinstance(arg, (str, bytes, os.PathLike)) or (isinstance(arg, int) and not place)
        ):
            number = _number()
            if number is not None:
                raise OSError(number, os.strerror(number), str(args[0]))
        return real(*args, **named)

    return call


if _FLAG and _BELOW:
    for _name in (
        *("open", "stat", "lstat", "replace", "rename", "link", "unlink", "remove", "mkdir"),
        *("scandir", "listdir", "read", "write", "pread", "statvfs", "utime", "readlink"),
        *("truncate", "ftruncate", "fsync", "access"),
    ):
        setattr(os, _name, _failing(getattr(os, _name), _name))
    builtins.open = io.open = _failing(_pyio.open, "open")
