"""Whose end is it, and what stood written then? Digests and lengths of its files; stdlib only."""

import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.files import read_plain, read_small
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, is_asked
from gonogo.supervise.weather import SCARCE

_HEARTBEATS = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
"""Of ranks: a trainer may have files of its own, whatever they are called."""
REQUESTS = (HALT_NAME, KILL_NAME)
AGAIN_S = 5.0
"""How long a disk that refuses a look is asked again, for all files of an end together."""
_AGAIN_POLL_S = 0.1
_CHUNK_BYTES = 2**20

_log = logging.getLogger(__name__)


def build_binding(run_dir: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by which an end belongs to one run and to one watch of it.

    `watch` seals the complete lines that stand in watch.jsonl now; ticks may follow them. A file
    that is missing, or cannot be read for AGAIN_S, is sealed as empty: nothing of it is vouched
    for.
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


def count_heartbeats(
    run_dir: Path, *, sealed: bool = True, give_up: float = 0.0
) -> dict[str, dict[str, Any]]:
    """Return name of each heartbeat file → how many complete lines stand in it, and their digest.

    No tick holds what a rank wrote that was never ordered, or what came behind the last tick.

    Args:
        run_dir: the run's directory.
        sealed: whether the digest is told.
        give_up: until when (monotonic clock) a disk that refuses is asked again.
    """
    found: dict[str, dict[str, Any]] = {}
    for match in filter(None, map(_HEARTBEATS.fullmatch, sorted(os.listdir(run_dir)))):
        read = _read_lines(run_dir / match[0], sealed=sealed, give_up=give_up)
        found[match[0]] = {"bytes": read.bytes, "lines": read.lines}
        if sealed:
            found[match[0]]["sha256"] = read.sha256
    return found


def digest_of(path: Path, *, give_up: float = 0.0) -> str | None:
    """Return the SHA-256 of a file's bytes; None when it cannot be read until `give_up`."""
    while True:
        try:
            return str(seal_file(path)["sha256"])
        except OSError as error:
            if not _is_to_be_tried_again(error, give_up):
                return None
        time.sleep(_AGAIN_POLL_S)


def seal_file(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a small record that stays as it is.

    Raises:
        OSError: it cannot be read, is no regular file, or too large for a record.
    """
    content = read_small(path)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal_lines(path: Path, *, give_up: float = 0.0) -> dict[str, Any]:
    """Return length and SHA-256 of a growing file up to the end of its last complete line."""
    read = _read_lines(path, sealed=True, give_up=give_up)
    return {"bytes": read.bytes, "sha256": read.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The complete lines of a file."""

    bytes: int
    lines: int
    sha256: str
    """Of nothing where it was not asked for."""


def _is_to_be_tried_again(error: OSError, give_up: float) -> bool:
    return error.errno in SCARCE and time.monotonic() < give_up


def _read_lines(path: Path, *, sealed: bool, give_up: float) -> _Read:
    """Return the complete lines of a file, or those before what no disk gives until `give_up`."""
    while True:
        read, error = _read_once(path, sealed=sealed)
        if error is None or not _is_to_be_tried_again(error, give_up):
            break
        time.sleep(_AGAIN_POLL_S)
    if error is not None:
        _log.warning("%s cannot be read: %s", path.name, error)
    return read


def _read_once(path: Path, *, sealed: bool) -> tuple[_Read, OSError | None]:
    """Read a file once: what is counted are the bytes that are sealed, whoever writes meanwhile.

    A piece of it is held at a time: a trainer's own file may be of any size, without a newline."""
    lines, size, whole = 0, 0, 0
    read, whole_lines = hashlib.sha256(), hashlib.sha256()
    refused = None
    try:
        with read_plain(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                cut = chunk.rfind(b"\n") + 1
                if cut:
                    lines, whole = lines + chunk.count(b"\n"), size + cut
                if sealed and cut:
                    read.update(chunk[:cut])
                    whole_lines = read.copy()
                if sealed:
                    read.update(chunk[cut:])
                size += len(chunk)
    except FileNotFoundError:
        pass  # nothing was written: sealed as empty
    except OSError as error:
        refused = error
    return _Read(bytes=whole, lines=lines, sha256=whole_lines.hexdigest()), refused
