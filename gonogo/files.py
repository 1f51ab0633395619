"""Open, read and create small files in folders that other programs write, too. Stdlib only.

A trainer writes in its run directory as well: a file there may be replaced by a pipe, a folder or a
link. Nothing here waits for a pipe, and nothing is written through a link.
"""

import errno
import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

MAX_RECORD_BYTES = 16 * 2**20
_NO_FILE = frozenset({errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class NoPlainFile(OSError):
    """The name belongs to neither a file nor a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is no regular file", str(path))


def is_there(path: Path) -> bool:
    """Whether a name exists. `Path.exists` of Python 3.14 also hides a disk that refuses.

    Raises:
        OSError: the disk does not answer.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True


def is_for_good(error: OSError) -> bool:
    """Whether an error says that this is no file, rather than that the disk refuses just now."""
    return isinstance(error, NoPlainFile) or error.errno in _NO_FILE


def read_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading; raises `NoPlainFile` or another OSError."""
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def read_small(path: Path) -> bytes:
    """Return the bytes of a small record.

    Raises:
        NoPlainFile, OSError: as `read_plain`; or it is larger than `MAX_RECORD_BYTES`.
    """
    with read_plain(path) as stream:
        if os.fstat(stream.fileno()).st_size > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_RECORD_BYTES} bytes", str(path))
        return stream.read()


def append_plain(path: Path) -> io.FileIO:
    """Open or create a regular file to append to it, without a buffer; no links.

    Raises:
        OSError: it cannot be opened or created; `NoPlainFile`: it is a link or no file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        return os.fdopen(_open_regular(path, flags), "ab+", buffering=0)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NoPlainFile(path) from None
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append a line in one write, or nothing of it. A torn line before it is closed first.

    Raises:
        OSError: it cannot be written.
    """
    with append_plain(path) as stream:
        end = stream.seek(0, os.SEEK_END)
        torn = end and os.pread(stream.fileno(), 1, end - 1) != b"\n"
        data = (b"\n" if torn else b"") + line
        if os.write(stream.fileno(), data) < len(data):
            os.ftruncate(stream.fileno(), end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def create_plain(path: Path) -> IO[bytes]:
    """Open a new file for writing in place of whatever had its name."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def open_private(path: Path) -> IO[bytes]:
    """Open a file for appending that no other user can open or lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    stream = os.fdopen(os.open(path, flags, 0o600), "ab")
    with suppress(OSError):  # another user's
        os.fchmod(stream.fileno(), 0o600)
    return stream


def replace_file(path: Path, content: bytes, *, syncs: bool = True) -> None:
    """Write a file whole or not at all, over what was there; durable if it syncs."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            if syncs:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if syncs:
        sync_folder(path.parent)


def place_first(spare: Path, path: Path) -> bool:
    """Give a written file its name unless the name exists; True if this call gave it.

    File and name are durable then. The caller removes `spare`, which is in the folder of `path`. On
    a file system without hard links two writers in the same moment may both get True.
    """
    _sync(spare, os.O_RDONLY)
    try:
        os.link(spare, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.is_symlink() or path.exists():
            return False
        spare.replace(path)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable; the fsync of a file does not cover its name."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_regular(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NoPlainFile(path)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
