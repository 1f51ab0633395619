"""Whose end is it, and what stood written then? Digests and lengths of its files; stdlib only."""

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.plain_file import read_plain

_HEARTBEATS = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
"""Of ranks: a trainer may have files of its own, whatever they are called."""
REQUESTS = (".HALT", ".kill")
_CHUNK_BYTES = 2**20

_log = logging.getLogger(__name__)


def build_binding(run_dir: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by which an end belongs to one run and to one watch of it.

    `watch` seals the complete lines that stand in watch.jsonl now; ticks may follow them. A file
    that is missing or cannot be read is sealed as empty: nothing of it is vouched for.
    """
    return {
        "run": order.get("run"),
        "attempt": order.get("attempt", 1),
        "order_sha256": digest_of(run_dir / "order.json"),
        "watch": seal_lines(run_dir / "watch.jsonl"),
        "requests": [name for name in REQUESTS if (run_dir / name).exists()],
        "findings": seal_lines(run_dir / "findings.jsonl"),
        "heartbeats": count_heartbeats(run_dir, order.get("world_size")),
    }


def count_heartbeats(run_dir: Path, world_size: object) -> dict[str, dict[str, Any]]:
    """Return name of each heartbeat file → how many complete lines stand in it.

    Of a rank that was never ordered with their digest, too: no tick holds what stands there.

    Args:
        run_dir: the run's directory.
        world_size: how many ranks were ordered.
    """
    found: dict[str, dict[str, Any]] = {}
    for match in filter(None, map(_HEARTBEATS.fullmatch, sorted(os.listdir(run_dir)))):
        path = run_dir / match[0]
        found[match[0]] = {**count_lines(path)}
        if isinstance(world_size, int) and int(match[1]) >= world_size:
            seal = seal_lines(path)
            if seal["bytes"] == found[match[0]]["bytes"]:  # nobody writes there just now
                found[match[0]]["sha256"] = seal["sha256"]
    return found


def count_lines(path: Path) -> dict[str, int]:
    """Return how many complete lines stand in a file, and up to which byte."""
    lines, size, whole = 0, 0, 0
    try:
        with read_plain(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                found = chunk.count(b"\n")
                if found:
                    lines, whole = lines + found, size + chunk.rfind(b"\n") + 1
                size += len(chunk)
    except OSError as error:
        _log.warning("%s cannot be counted: %s", path.name, error)
    return {"bytes": whole, "lines": lines}


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file's bytes; None when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def seal_file(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a file that stays as it is.

    Raises:
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal_lines(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a growing file up to the end of its last complete line."""
    sealed, size, torn = hashlib.sha256(), 0, b""
    try:
        with read_plain(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                data = torn + chunk
                cut = data.rfind(b"\n") + 1
                sealed.update(data[:cut])
                size, torn = size + cut, data[cut:]
    except FileNotFoundError:
        pass  # nothing was written: sealed as empty
    except OSError as error:
        _log.warning("%s cannot be sealed: %s", path.name, error)
    return {"bytes": size, "sha256": sealed.hexdigest()}
