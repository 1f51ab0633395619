"""How is a file opened that may have become something else meanwhile? Standard library only.

A run directory is its trainer's, too: of a pipe in a file's place an opening would wait for a
writer, of a device nobody knows what reading it does, and a link leads out of it.
"""

import errno
import io
import os
import stat
import sys
from pathlib import Path
from typing import IO

MAX_RECORD_BYTES = 16 * 2**20
"""No small record comes near this; a file that does is none."""
_PIECE_BYTES = 2**16
"""What is read at once: Python takes the memory for as much as it is asked for, whatever is there.
"""
_NO_FILE = frozenset({errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""Too large, a folder, a link to itself, in what is no folder, a socket."""
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def is_there(path: Path) -> bool:
    """Say whether something has a name.

    Not `Path.exists`, which since Python 3.14 takes a disk that refuses for one that has nothing.

    Raises:
        OSError: nobody can say just now.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True


class NoPlainFile(OSError):
    """What has the name is neither a file nor a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is no regular file", str(path))


def is_for_good(error: OSError) -> bool:
    """Say whether what cannot be read is no file at any later time either, whatever the disk."""
    return isinstance(error, NoPlainFile) or error.errno in _NO_FILE


def open_plain(path: Path) -> int:
    """Return the descriptor of a regular file, for reading; nothing else is waited for.

    Raises:
        NoPlainFile: it is a pipe, a device, a socket.
        OSError: it cannot be opened, or is a folder.
    """
    return _open_regular(path, os.O_RDONLY)


def read_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises:
        NoPlainFile, OSError: as `open_plain`.
    """
    return os.fdopen(open_plain(path), "rb")


def first_hole(descriptor: int) -> int:
    """Return at which byte a file has its first hole, or ends; it is read from its start then.

    Nobody leaves one who appends, and one of a terabyte takes no room, and hours to be read. Where
    the file was empty a moment ago, or a file system cannot tell, it is that of any file.
    """
    try:
        found = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return sys.maxsize
    os.lseek(descriptor, 0, os.SEEK_SET)
    return found


def next_data(descriptor: int, offset: int) -> int:
    """Return from which byte on, `offset` or behind it, a file has something else than a hole.

    That is its end where there is none: the end that it had before it was asked, for what has been
    added since is no hole.
    """
    end = os.fstat(descriptor).st_size
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return end if error.errno == errno.ENXIO else offset


def read_small(path: Path) -> bytes:
    """Return the bytes of a small record.

    Raises:
        NoPlainFile, OSError: as `open_plain`; or it is larger than `MAX_RECORD_BYTES`.
    """
    raw = bytearray()
    with read_plain(path) as stream:
        while len(raw) <= MAX_RECORD_BYTES and (piece := stream.read(_PIECE_BYTES)):
            raw += piece
    if len(raw) > MAX_RECORD_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_RECORD_BYTES} bytes", str(path))
    return bytes(raw)


def append_plain(path: Path) -> io.FileIO:
    """Open a regular file to add to it, without a buffer, and to read it; made where none is.

    A link is not followed: whoever put it there may want written what only we may write.

    Raises:
        NoPlainFile: it is a link, a pipe, a device, a socket.
        OSError: it cannot be opened, or made, or is a folder.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        return os.fdopen(_open_regular(path, flags), "ab+", buffering=0)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NoPlainFile(path) from None
        raise


def create_plain(path: Path) -> IO[bytes]:
    """Open a new file for writing, whatever had its name.

    Of a draft that was left nothing stays, a link of a trainer's is not written through, and a pipe
    not waited for.

    Raises:
        OSError: the disk refuses, or a folder has the name.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


def _open_regular(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NoPlainFile(path)
        os.set_blocking(descriptor, True)  # some program's output, perhaps
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
