"""Lengths and digests of a run's files at its end, which exit.json holds. Standard library only."""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gonogo.files import read_plain, read_small
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, is_asked
from gonogo.supervise.transient_errors import SCARCE

_HEARTBEATS = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
REQUESTS = (HALT_NAME, KILL_NAME)
AGAIN_S = 5.0
"""How long reading is repeated on a failing disk, for all files of an end together."""
_AGAIN_POLL_S = 0.1
_CHUNK_BYTES = 2**20

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def build_binding(run_dir: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that bind an end to one run, one order and one watch.

    `watch` seals the complete lines of watch.jsonl; ticks may follow them. A file that is missing
    or cannot be read for AGAIN_S is sealed as empty.
    """
    give_up = time.monotonic() + AGAIN_S
    return {
        "run": order.get("run"),
        "attempt": order.get("attempt", 1),
        "order_sha256": digest_of(run_dir / "order.json", give_up=give_up),
        "watch": seal_lines(run_dir / "watch.jsonl", give_up=give_up),
        "requests": [name for name in REQUESTS if is_asked(run_dir / name)],
        "findings": seal_lines(run_dir / "findings.jsonl", give_up=give_up),
        "heartbeats": count_heartbeats(run_dir, give_up=give_up),
    }


def count_heartbeats(run_dir: Path, *, give_up: float = 0.0) -> dict[str, dict[str, Any]]:
    """Return name → bytes, lines and digest of the complete lines of each heartbeat file.

    Args:
        run_dir: the run's directory.
        give_up: until when (monotonic clock) a failing disk is asked again.
    """
    found: dict[str, dict[str, Any]] = {}
    for match in filter(None, map(_HEARTBEATS.fullmatch, sorted(os.listdir(run_dir)))):
        read = _read_lines(run_dir / match[0], give_up)
        found[match[0]] = {"bytes": read.bytes, "lines": read.lines, "sha256": read.sha256}
    return found


def digest_of(path: Path, *, give_up: float = 0.0) -> str | None:
    """Return the SHA-256 of a file's bytes; None when it cannot be read until `give_up`."""
    seal = _repeated(lambda: seal_file(path), path, give_up)
    return None if seal is None else str(seal["sha256"])


def seal_file(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a small record.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large for a record.
    """
    content = read_small(path)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal_lines(path: Path, *, give_up: float = 0.0) -> dict[str, Any]:
    """Return length and SHA-256 of a growing file up to the end of its last complete line."""
    read = _read_lines(path, give_up)
    return {"bytes": read.bytes, "sha256": read.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """The complete lines of a file."""

    bytes: int = 0
    lines: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def _read_lines(path: Path, give_up: float) -> _Lines:
    return _repeated(lambda: _read_once(path), path, give_up) or _Lines()


def _repeated(work: Callable[[], _T], path: Path, give_up: float) -> _T | None:
    """Return what `work` returns; None for a file that is missing or not readable."""
    while True:
        try:
            return work()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in SCARCE or time.monotonic() >= give_up:
                _log.warning("%s cannot be read: %s", path.name, error)
                return None
        time.sleep(_AGAIN_POLL_S)


def _read_once(path: Path) -> _Lines:
    """Read a file in chunks, since a line may be of any length.

    Raises:
        OSError: it cannot be read.
    """
    lines = size = whole = 0
    read, whole_lines = hashlib.sha256(), hashlib.sha256()
    with read_plain(path) as stream:
        left = os.fstat(stream.fileno()).st_size  # somebody may still write
        while chunk := stream.read(min(_CHUNK_BYTES, left)):
            left -= len(chunk)
            cut = chunk.rfind(b"\n") + 1
            if cut:
                lines, whole = lines + chunk.count(b"\n"), size + cut
                read.update(chunk[:cut])
                whole_lines = read.copy()
            read.update(chunk[cut:])
            size += len(chunk)
    return _Lines(bytes=whole, lines=lines, sha256=whole_lines.hexdigest())
