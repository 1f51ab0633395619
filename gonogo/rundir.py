"""Where does what lie in a run directory, and how are its lines read?

The run directory is the truth about a run and the only spool. Names are those of the interface;
readers take complete lines only, so that a torn last line waits for its end. Nothing here follows
a path out of the directory.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt, Rejected
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.tick import FileSeal
from gonogo.first_file import sync_folder
from gonogo.plain_file import first_hole, is_for_good, open_plain, read_plain, read_small

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HEARTBEAT = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
_RANK_EXIT = re.compile(r"exit_rank(0|[1-9][0-9]{0,5})\.json")
_RANK_LOG = re.compile(r"rank(0|[1-9][0-9]{0,3})\.log")
TAIL_BYTES = 2**16
"""Of a log's end, as people read it."""
SHIPPED_NAME = ".shipped"
"""Says that nothing of the run waits to be shipped: a worker leaves it alone."""
NO_SERVICE = "no service knows"
"""What `.shipped` says of a run that needs no service, and of no other."""
PIECE_BYTES = 4 * MAX_LINE_BYTES
"""What no newline ends comes in pieces of so many bytes, each of which its parser refuses."""
_CHUNK_BYTES = 8 * 2**20
TICK_BYTES = _CHUNK_BYTES
"""Longest line of watch.jsonl that is read: a tick tells of each rank, in 180 bytes and more."""
_TAIL_BYTES = 131_072
_M = TypeVar("_M", bound=BaseModel)


class _File:
    """A name that every run directory has; of one directory, its path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunDir", owner: type["RunDir"] | None = None) -> Path:
        return run.path / self.name


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside one run directory."""

    path: Path

    order = _File("order.json")
    go = _File(".GO")
    """The watcher lets the trainer begin."""
    halt = _File(".HALT")
    """The trainer is asked to end with a checkpoint."""
    model = _File("model.json")
    exit = _File("exit.json")
    """Written last."""
    watch = _File("watch.jsonl")
    findings = _File("findings.jsonl")
    devices = _File("devices.jsonl")
    preflight = _File("preflight/preflight.json")
    """Of the first node."""
    evidence = _File("evidence")
    checkpoints = _File("checkpoints")
    torchrun_log = _File("torchrun.log")

    def preflight_of(self, node: int) -> Path:
        """Where one node's preflight record lies."""
        return self.path / preflight_name(node)

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat file of a rank."""
        return self.path / f"heartbeat_rank{rank}.jsonl"

    def rank_exit(self, rank: int) -> Path:
        """Exit record of a rank."""
        return self.path / f"exit_rank{rank}.json"

    def rank_log(self, rank: int) -> Path:
        """Log of a rank."""
        return self.path / f"rank{rank}.log"

    def node_exit(self, node: int) -> Path:
        """How one node's part of a run with several ended."""
        return self.path / f"exit_node{node}.json"

    def node_watch(self, node: int) -> Path:
        """What the follower of one node told."""
        return self.path / f"watch_node{node}.jsonl"

    def _ranks_in(self, name: re.Pattern[str]) -> list[int]:
        try:
            found = map(name.fullmatch, os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(match.group(1)) for match in found if match)

    ranks = partialmethod(_ranks_in, _HEARTBEAT)
    """Return the ranks that have a heartbeat file, ascending."""
    ended_ranks = partialmethod(_ranks_in, _RANK_EXIT)
    """Return the ranks that have an exit record, ascending."""
    logged_ranks = partialmethod(_ranks_in, _RANK_LOG)
    """Return the ranks that have a log, ascending; one that died at once has nothing else."""

    def inside(self, relative: str) -> Path:
        """Return the real path of an artifact.

        Raises:
            Rejected: the path leads out of the run directory (links included).
        """
        root = self.path.resolve()
        target = (root / relative).resolve()
        if not target.is_relative_to(root):
            raise Rejected(f"{relative!r} leads out of the run directory")
        return target


@dataclass(frozen=True, slots=True)
class Lines:
    """Complete lines from one read, and where the next read begins."""

    lines: list[bytes]
    offset: int
    """Bytes from the start of the file up to the end of the last complete line."""


def preflight_name(node: int) -> str:
    """Return the path of one node's preflight record, relative to the run directory."""
    return f"preflight/node{node}/preflight.json" if node > 0 else "preflight/preflight.json"


def heartbeat_rank(name: str) -> int | None:
    """Return the rank whose heartbeat file has this name; None where it is no such file's."""
    found = _HEARTBEAT.fullmatch(name)
    return None if found is None else int(found.group(1))


def is_text(name: str | Path) -> bool:
    """Say whether a file's name is made of characters; other bytes can be told to nobody."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def open_lines(path: Path) -> IO[bytes]:
    """Open a file of lines for reading; it ends at a hole, or where it cannot be read any more.

    Raises:
        OSError: as `read_plain`.
    """
    return io.BufferedReader(_UpToAnError(open_plain(path)))


def check_whole(path: Path) -> None:
    """Read a file of lines to its end, or its first hole.

    Raises:
        OSError: it cannot be opened, is no regular file, or some of it cannot be read.
    """
    with read_plain(path) as stream:
        left = first_hole(stream.fileno())
        while part := stream.read(min(_CHUNK_BYTES, left)):
            left -= len(part)


class _UpToAnError(io.FileIO):
    """A file that ends at a hole, at a bad sector, or where the host that has it is gone."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._end = first_hole(descriptor)

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        """Read what there is; nothing where that fails."""
        try:
            left = max(0, self._end - self.tell())
            return super().readinto(memoryview(buffer)[:left])
        except OSError:
            return 0


def load_lines(path: Path, offset: int = 0, end: int | None = None) -> Lines:
    """Return the complete lines of a file from `offset` on (up to `end` or 8 MiB).

    A missing file has no lines, and no file any behind its first hole. A line that outgrows the
    protocol's limit is returned in pieces, each of which its parser refuses and counts.
    """
    limit = _CHUNK_BYTES if end is None else max(0, end - offset)
    try:
        with read_plain(path) as stream:
            left = max(0, first_hole(stream.fileno()) - offset)
            stream.seek(offset)
            data = stream.read(min(limit, left))
    except FileNotFoundError:
        return Lines(lines=[], offset=offset)
    cut = data.rfind(b"\n") + 1
    if cut == 0 and len(data) > MAX_LINE_BYTES:
        cut = len(data)
    return Lines(lines=data[:cut].splitlines(), offset=offset + cut)


def find_file(path: Path, offset: int, known: int | None) -> tuple[int | None, bool]:
    """Return the inode of a growing file, and whether what was read up to `offset` is not in it.

    Somebody has removed, emptied or rewritten it; whoever writes it goes on in what stands there.

    Args:
        path: of the file; a missing one is the one known.
        offset: up to where it was read.
        known: inode of what was read; None before that.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return known, False
    return stat.st_ino, known not in (None, stat.st_ino) or stat.st_size < offset


def seen_lines(path: Path, offset: int = 0, end: int | None = None) -> Lines:
    """Return what `load_lines` does; none of what is no file, which a program made of one."""
    try:
        return load_lines(path, offset, end)
    except OSError as error:
        if not is_for_good(error):
            raise
        return Lines(lines=[], offset=offset)


def complete_bytes(path: Path) -> int:
    """Return how many bytes of a file stand in complete lines, up to its first hole.

    None of a file that is missing.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    try:
        with read_plain(path) as stream:
            whole = os.fstat(stream.fileno()).st_size
            end = min(whole, first_hole(stream.fileno()))
            while end > 0:
                start = max(0, end - _TAIL_BYTES)
                stream.seek(start)
                cut = stream.read(end - start).rfind(b"\n")
                if cut >= 0:
                    return start + cut + 1
                end = start
    except FileNotFoundError:
        pass
    return 0


def load_all_lines(path: Path, end: int | None = None) -> list[bytes]:
    """Return every complete line of a file (up to byte `end`)."""
    lines: list[bytes] = []
    offset = 0
    while True:
        stop = None if end is None else min(end, offset + _CHUNK_BYTES)
        part = load_lines(path, offset, stop)
        if part.offset == offset:
            return lines
        lines.extend(part.lines)
        offset = part.offset


def iter_lines(path: Path, most: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the complete lines of a file, newline included; none of a file that cannot be opened.

    They end where it cannot be read any more. A line of more bytes than `most` comes in pieces,
    each of which its parser refuses.
    """
    try:
        stream = open_lines(path)
    except OSError:
        return
    with stream:
        while raw := stream.readline(most):
            if not raw.endswith(b"\n") and len(raw) < most:
                return
            yield raw


def read_tail(path: Path, most: int = TAIL_BYTES) -> str:
    """Return the end of a log; nothing of one that is not there, cannot be read, or is a link."""
    if path.is_symlink():
        return ""
    try:
        with read_plain(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
            return stream.read(most).decode(errors="replace")
    except OSError:
        return ""


def load_record(path: Path, model: type[_M]) -> _M | None:
    """Return the record in a small JSON file, or None when there is no such file.

    Raises:
        Corrupt: the file is there and is not such a record.
    """
    found = load_sealed(path, model)
    return None if found is None else found[0]


def load_sealed(path: Path, model: type[_M]) -> tuple[_M, str] | None:
    """Return the record in a small JSON file and the SHA-256 of its bytes; None: no such file.

    Raises:
        Corrupt: the file is there and is not such a record.
    """
    raw = load_raw(path)
    if raw is None:
        return None
    return parse_record(path.name, raw, model), hashlib.sha256(raw).hexdigest()


def load_raw(path: Path) -> bytes | None:
    """Return the bytes of a small file, or None when there is no such file.

    Raises:
        Corrupt: it is there and can never be read.
        OSError: the disk refuses it; it may be read later.
    """
    try:
        return read_small(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_for_good(error):
            raise
        raise Corrupt(f"{path.name}: {error.strerror}") from error


def parse_record(name: str, raw: bytes, model: type[_M]) -> _M:
    """Return the record in the bytes of a small JSON file.

    Raises:
        Corrupt: they are no such record.
    """
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        place = f"{where}: " if where else ""
        raise Corrupt(f"{name}: {place}{first['msg']}") from error


def file_seal(path: Path) -> FileSeal:
    """Return size and SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    found, size = hashlib.sha256(), 0
    with read_plain(path) as stream:
        while part := stream.read(_CHUNK_BYTES):
            found.update(part)
            size += len(part)
    return FileSeal(bytes=size, sha256=found.hexdigest())


def save_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically and durably (temporary file, fsync, rename, fsync)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")  # no trainer's to guess
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            json.dump(wire_value(value), stream, indent=1, ensure_ascii=False, allow_nan=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
