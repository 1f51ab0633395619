"""Where does what lie in a run directory, and how are its lines read?

The run directory is the truth about a run and the only spool. Names are those of the interface;
readers take complete lines only, so that a torn last line waits for its end. Nothing here follows
a path out of the directory.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt, Rejected
from gonogo.contract.heartbeat import MAX_LINE_BYTES

_HEARTBEAT = re.compile(r"heartbeat_rank(\d+)\.jsonl")
_CHUNK_BYTES = 8 * 2**20
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside one run directory."""

    path: Path

    @property
    def order(self) -> Path:
        """order.json."""
        return self.path / "order.json"

    @property
    def go(self) -> Path:
        """.GO: the watcher lets the trainer begin."""
        return self.path / ".GO"

    @property
    def halt(self) -> Path:
        """.HALT: the trainer is asked to end with a checkpoint."""
        return self.path / ".HALT"

    @property
    def model(self) -> Path:
        """model.json."""
        return self.path / "model.json"

    @property
    def exit(self) -> Path:
        """exit.json, written last."""
        return self.path / "exit.json"

    @property
    def watch(self) -> Path:
        """watch.jsonl."""
        return self.path / "watch.jsonl"

    @property
    def findings(self) -> Path:
        """findings.jsonl."""
        return self.path / "findings.jsonl"

    @property
    def preflight(self) -> Path:
        """preflight/preflight.json."""
        return self.path / "preflight" / "preflight.json"

    @property
    def evidence(self) -> Path:
        """Folder of evidence."""
        return self.path / "evidence"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def torchrun_log(self) -> Path:
        """torchrun.log."""
        return self.path / "torchrun.log"

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat file of a rank."""
        return self.path / f"heartbeat_rank{rank}.jsonl"

    def rank_exit(self, rank: int) -> Path:
        """Exit record of a rank."""
        return self.path / f"exit_rank{rank}.json"

    def rank_log(self, rank: int) -> Path:
        """Log of a rank."""
        return self.path / f"rank{rank}.log"

    def ranks(self) -> list[int]:
        """Return the ranks that have a heartbeat file, ascending."""
        if not self.path.is_dir():
            return []
        found = (_HEARTBEAT.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match.group(1)) for match in found if match)

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


def load_lines(path: Path, offset: int = 0, end: int | None = None) -> Lines:
    """Return the complete lines of a file from `offset` on (up to `end` or 8 MiB).

    A missing file has no lines. A line that outgrows the protocol's limit is returned in pieces,
    each of which its parser refuses and counts.
    """
    limit = _CHUNK_BYTES if end is None else max(0, end - offset)
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(limit)
    except FileNotFoundError:
        return Lines(lines=[], offset=offset)
    cut = data.rfind(b"\n") + 1
    if cut == 0 and len(data) > MAX_LINE_BYTES:
        cut = len(data)
    return Lines(lines=data[:cut].splitlines(), offset=offset + cut)


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


def load_record(path: Path, model: type[_M]) -> _M | None:
    """Return the record in a small JSON file, or None when there is no such file.

    Raises:
        Corrupt: the file is there and is not such a record.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"{path.name}: {where}: {first['msg']}") from error


def save_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically and durably (temporary file, fsync, rename)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(wire_value(value), stream, indent=1, ensure_ascii=False, allow_nan=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
