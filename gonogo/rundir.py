"""Names of the files in a run directory, and how their lines and records are read.

The run directory is the truth about a run and the only spool. Readers take complete lines only, so
a torn last line waits for its end. No path is followed out of the directory.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partialmethod
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.files import is_for_good, read_plain, read_small, replace_file

_HEARTBEAT = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
_RANK_EXIT = re.compile(r"exit_rank(0|[1-9][0-9]{0,5})\.json")
_RANK_LOG = re.compile(r"rank(0|[1-9][0-9]{0,3})\.log")
TAIL_BYTES = 2**16
SHIPPED_NAME = ".shipped"
"""Marks a run that the worker has shipped completely."""
NO_SERVICE = "no service knows"
PRUNED_NAME = "pruned.json"
"""Left by `gonogo prune`: `{v, what: all | checkpoints, at: Unix seconds, policy}`."""
PIECE_BYTES = 4 * MAX_LINE_BYTES
"""A longer line is read in pieces of this size, each of which its parser refuses."""
_CHUNK_BYTES = 8 * 2**20
TICK_BYTES = _CHUNK_BYTES
"""Longest line of watch.jsonl: a tick holds at least 180 bytes for each rank."""
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
    watch = _File("watch.jsonl")
    findings = _File("findings.jsonl")
    devices = _File("devices.jsonl")
    preflight = _File("preflight/preflight.json")
    evidence = _File("evidence")
    checkpoints = _File("checkpoints")
    torchrun_log = _File("torchrun.log")

    def preflight_of(self, node: int) -> Path:
        """Preflight record of a node."""
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

    def _ranks_in(self, name: re.Pattern[str]) -> list[int]:
        try:
            found = map(name.fullmatch, os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(match.group(1)) for match in found if match)

    ranks = partialmethod(_ranks_in, _HEARTBEAT)
    """Return the ranks that have a heartbeat file, ascending."""
    ended_ranks = partialmethod(_ranks_in, _RANK_EXIT)
    logged_ranks = partialmethod(_ranks_in, _RANK_LOG)

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


def preflight_name(node: int) -> str:
    """Return the path of a node's preflight record, relative to the run directory."""
    return f"preflight/node{node}/preflight.json" if node > 0 else "preflight/preflight.json"


def heartbeat_rank(name: str) -> int | None:
    """Return the rank of a heartbeat file's name; None for another name."""
    found = _HEARTBEAT.fullmatch(name)
    return None if found is None else int(found.group(1))


def is_text(name: str | Path) -> bool:
    """Whether a file's name is valid text, so that a record can hold it."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def load_lines(path: Path, offset: int = 0, end: int | None = None) -> Lines:
    """Return the complete lines of a file from `offset` on (up to `end` or 8 MiB).

    A missing file has no lines. A line above the protocol's limit is returned in pieces.
    """
    limit = _CHUNK_BYTES if end is None else max(0, end - offset)
    try:
        with read_plain(path) as stream:
            stream.seek(offset)
            data = stream.read(limit)
    except FileNotFoundError:
        return Lines(lines=[], offset=offset)
    cut = data.rfind(b"\n") + 1
    if cut == 0 and len(data) > MAX_LINE_BYTES:
        cut = len(data)
    return Lines(lines=data[:cut].splitlines(), offset=offset + cut)


def seen_lines(path: Path, offset: int = 0, end: int | None = None) -> Lines:
    """Return what `load_lines` does; no lines if it is no regular file."""
    try:
        return load_lines(path, offset, end)
    except OSError as error:
        if not is_for_good(error):
            raise
        return Lines(lines=[], offset=offset)


def complete_bytes(path: Path) -> int:
    """Return the number of bytes in complete lines; 0 if the file is missing."""
    try:
        with read_plain(path) as stream:
            end = os.fstat(stream.fileno()).st_size
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


def load_all_lines(path: Path) -> list[bytes]:
    """Return every complete line of a file."""
    return load_lines(path, end=path.stat().st_size).lines if path.exists() else []


def iter_lines(path: Path, most: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the complete lines of a file with newlines; one above `most` comes in pieces."""
    with suppress(OSError), read_plain(path) as stream:
        while raw := stream.readline(most):
            if not raw.endswith(b"\n") and len(raw) < most:
                return
            yield raw


def read_tail(path: Path, most: int = TAIL_BYTES) -> str:
    """Return the end of a log; empty if it is missing, a link, or cannot be read."""
    if path.is_symlink():
        return ""
    try:
        with read_plain(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
            return stream.read(most).decode(errors="replace")
    except OSError:
        return ""


def load_record(path: Path, model: type[_M]) -> _M | None:
    """Return the record in a small JSON file; None if there is no such file.

    Raises:
        Corrupt: the file exists and is no such record.
    """
    found = load_sealed(path, model)
    return None if found is None else found[0]


def load_sealed(path: Path, model: type[_M]) -> tuple[_M, str] | None:
    """Return the record in a small JSON file and the SHA-256 of its bytes; None: no such file.

    Raises:
        Corrupt: the file exists and is no such record.
        OSError: the disk refuses it; it may be read later.
    """
    try:
        raw = read_small(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_for_good(error):
            raise
        raise Corrupt(f"{path.name}: {error.strerror}") from error
    return parse_record(path.name, raw, model), hashlib.sha256(raw).hexdigest()


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


def save_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically and durably (temporary file, fsync, rename, fsync)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(wire_value(value), indent=1, ensure_ascii=False, allow_nan=False)
    replace_file(path, f"{text}\n".encode())


def load_pruned(path: Path) -> dict[str, Any] | None:
    """Return what was pruned of a run directory; None: nothing. A torn record is `{}`."""
    with suppress(OSError):
        try:
            return dict(json.loads(read_small(path / PRUNED_NAME)))
        except ValueError:
            return {}
    return None


def pruned_text(path: Path) -> str | None:
    """Return the sentence about a pruned run directory; None if nothing was pruned."""
    found = load_pruned(path)
    if found is None:
        return None
    what = "its checkpoints were" if found.get("what") == "checkpoints" else "it was"
    if "at" not in found:
        return f"{what} pruned"
    when = datetime.fromtimestamp(found["at"], UTC)
    return f"{what} pruned on {when:%Y-%m-%d} ({found.get('policy')})"


def check_not_pruned(path: Path) -> None:
    """Refuse a run directory whose evidence was pruned.

    Raises:
        NotFound: it was pruned. A directory without its checkpoints still is whole evidence.
    """
    found = load_pruned(path)
    if found is not None and found.get("what") != "checkpoints":
        raise NotFound(f"{path.name}: {pruned_text(path)}")
