"""exit.json: why a run ended, and the seals of its files. Standard library only.

The cause is the first request to end, else the rank that failed first. exit.json is bound to its
run, attempt and order. It seals watch.jsonl, findings.jsonl and the heartbeat files as they stood
at the end.
"""

import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gonogo.files import read_plain, read_small
from gonogo.log_errors import OF_VICTIMS, signs_in
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, EndRequest, is_asked
from gonogo.supervise.last_lines import (
    Ended,
    error_of_cause,
    is_read_only_program,
    last_error_line,
    last_words,
    left_early,
    ranks_short,
)
from gonogo.supervise.transient_errors import TransientErrors

AGAIN_S = 5.0
"""How long reading is repeated on a failing disk, for all files of an end together."""
OOM_WITHIN_S = 10.0
"""A death by SIGKILL so close to a kill of the kernel for want of memory is that kill."""
FULL_BYTES = 64 * 2**20
"""With less room than this a disk is full; D19 has the same limit."""
FULL_FILES = 16
"""A disk with fewer free inodes is full, too."""
_KILL, _TERM = 9, 15
_ENDED_BY_ITSELF, _OOM, _DISK_FULL = "nonzero_exit", "oom", "disk_full"
_FAILING = re.compile(
    r"Stale file handle|\bESTALE\b|Input/output error|\bEIO\b|Transport endpoint is not connected",
    re.I,
)
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception)\b", re.M)
"""How the last line of a traceback begins."""
_HEARTBEATS = re.compile(r"heartbeat_rank(0|[1-9][0-9]{0,5})\.jsonl")
_CHUNK_BYTES = 2**20

Cause = tuple[str, str, str]
"""Reason (an outcome code), actor and text."""
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def build_exit(
    *,
    run_dir: Path,
    order: Mapping[str, Any],
    request: EndRequest | None,
    agent: Ended | None,
    ranks: Mapping[int, Ended],
    now: float,
    left: Sequence[Mapping[str, Any]] = (),
    oom_at: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """Return exit.json."""
    first = _first_failed(run_dir, ranks)
    killed_at = oom_at.get(first) if oom_at and first is not None else None
    end = _End(run_dir, order, request, agent, ranks, first, killed_at)
    reason, ended_by, text = _find_cause(end)
    shown = ranks[first] if first is not None else None
    if shown is None or not shown.is_known:
        all_known = bool(ranks) and all(ended.is_known for ended in ranks.values())
        shown = None if all_known else agent
    with_error = reason in (_ENDED_BY_ITSELF, _OOM, _DISK_FULL)
    return {
        "v": 1,
        "code": shown.code if shown else 0,
        "signal": shown.signal if shown else None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted(ranks.items())},
        "error": error_of_cause(run_dir, order, ranks, first) if with_error else [],
        **({"left": list(left)} if left else {}),
        **build_binding(run_dir, order),
    }


def build_refusal(
    reason: str, ended_by: str, text: str, *, run_dir: Path, order: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return exit.json of a run that was not started."""
    cause = {"ended_at": now, "ended_by": ended_by, "reason": reason, "text": text}
    nothing: dict[str, Any] = {"code": None, "signal": None, "agent": None, "ranks": {}}
    return {"v": 1, **nothing, **cause, **build_binding(run_dir, order)}


@dataclass(frozen=True, slots=True)
class _End:
    """What is known about a run's end; the fields are those of `build_exit`."""

    run_dir: Path
    order: Mapping[str, Any]
    request: EndRequest | None
    agent: Ended | None
    ranks: Mapping[int, Ended]
    first: int | None
    """The rank that failed first."""
    oom_at: float | None


def _first_failed(run_dir: Path, ranks: Mapping[int, Ended]) -> int | None:
    """Return the rank that failed first.

    Ranks that lost a peer or got SIGTERM are victims, unless all are. If nobody saw an end, the
    first rank counts whose last line is an error of its own.
    """
    failed = {rank: ended for rank, ended in ranks.items() if ended.code or ended.signal}
    if failed:
        own = [rank for rank, row in failed.items() if row.signal != _TERM and not row.lost_peer]
        return min(own or failed, key=lambda rank: (failed[rank].at, rank))
    lines = {rank: error for rank in ranks if (error := last_error_line(run_dir, rank))}
    said = {rank: row for rank, row in lines.items() if not signs_in(str(row)) & OF_VICTIMS}
    return min(said, key=lambda rank: (said[rank].get("ts", 0.0), rank), default=None)


def _find_cause(end: _End) -> Cause:
    run_dir, order, request = end.run_dir, end.order, end.request
    command_left = bool(order.get("command")) and end.agent is not None and end.agent.code == 0
    programs = int(order.get("nodes") or 1) if order.get("command") else int(order["world_size"])
    clean = len(end.ranks) >= programs and all(
        ended.code == 0 or (command_left and not ended.is_known) for ended in end.ranks.values()
    )
    short = ranks_short(run_dir, order)
    if clean and not short:
        return "completed", "trainer", ""
    read_only = request is None and is_read_only_program(run_dir, order)
    if clean and read_only and not left_early(run_dir, order):
        text = f"it ended with 0, and its output does not show step {order['steps']} of every rank"
        return "completed", "trainer", text
    if request is not None and request.reason != _ENDED_BY_ITSELF:
        return request.reason, request.ended_by, request.text
    if clean:
        some = f"rank {', '.join(map(str, short))}"
        who = "every rank" if len(short) == int(order["world_size"]) else some
        return _ENDED_BY_ITSELF, "trainer", f"{who} ended with 0 before the last ordered step"
    return _failed(end)


def _failed(end: _End) -> Cause:
    """Return the cause where a program failed, and no other request explains it."""
    first = end.first
    text = (end.request.text if end.request is not None else "") or _describe(end)
    if first is None:
        return _ENDED_BY_ITSELF, "trainer", text
    ended = end.ranks[first]
    near_oom = end.oom_at is not None and abs(end.oom_at - ended.at) <= OOM_WITHIN_S
    if near_oom and (ended.signal == _KILL or ended.code == 128 + _KILL):  # a shell's code
        return _OOM, "trainer", f"{_name(end, first)} was killed by the kernel: out of memory"
    if near_oom and ended.code:
        text += "; the kernel killed a process for want of memory about then"
    words = last_words(end.run_dir, end.order, first, ended, alone=len(end.ranks) == 1)
    signs = signs_in(words)
    if "out_of_memory" in signs:
        return _OOM, "trainer", text
    full = any(map(_is_full, (end.run_dir, end.run_dir / "checkpoints")))
    if full and "no_space" in signs:
        return _DISK_FULL, "trainer", text
    if _FAILING.search(words) is not None:
        return _DISK_FULL, "trainer", f"{text}: the file system failed"
    if full and ended.code and not _ERROR.search(words):
        return _DISK_FULL, "trainer", f"{text}; the disk took no word of why"
    return _ENDED_BY_ITSELF, "trainer", text


def _describe(end: _End) -> str:
    """Return a sentence about who ended how."""
    agent = end.agent
    if end.first is None:
        if end.order.get("command"):
            how = f" {_how(agent)}" if agent else ""
            return f"the command ended{how}, and nobody saw which rank failed"
        how = f" (code {agent.code}, signal {agent.signal})" if agent else ""
        return f"torchrun ended{how} before its ranks had"
    ended = end.ranks[end.first]
    return f"{_name(end, end.first)} ended {_how(ended if ended.is_known or not agent else agent)}"


def _name(end: _End, rank: int) -> str:
    alone = bool(end.order.get("command")) and len(end.ranks) <= 1
    return "the command" if alone else f"rank {rank}"


def _how(ended: Ended) -> str:
    return f"by signal {ended.signal}" if ended.signal else f"with code {ended.code}"


def _is_full(path: Path) -> bool:
    """Return whether a disk is full; one that counts no blocks or inodes is not."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    free_files = found.f_favail if found.f_files > 0 else math.inf
    free_bytes = found.f_bavail * found.f_frsize
    return found.f_blocks > 0 and (free_bytes < FULL_BYTES or free_files < FULL_FILES)


def build_binding(run_dir: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that bind an end to one run, one order and one watch.

    `watch` seals the complete lines of watch.jsonl; ticks may follow them. A file that is missing
    or cannot be read for AGAIN_S is sealed as empty.
    """
    give_up = time.monotonic() + AGAIN_S
    order_seal = _tried(run_dir / "order.json", seal_file, give_up)
    return {
        "run": order.get("run"),
        "attempt": order.get("attempt", 1),
        "order_sha256": None if order_seal is None else order_seal["sha256"],
        "watch": seal_lines(run_dir / "watch.jsonl", give_up=give_up),
        "requests": [name for name in (HALT_NAME, KILL_NAME) if is_asked(run_dir / name)],
        "findings": seal_lines(run_dir / "findings.jsonl", give_up=give_up),
        "heartbeats": count_heartbeats(run_dir, give_up=give_up),
    }


def count_heartbeats(run_dir: Path, *, give_up: float = 0.0) -> dict[str, dict[str, Any]]:
    """Return name → bytes, lines and digest of the complete lines of each heartbeat file."""
    names = filter(_HEARTBEATS.fullmatch, sorted(os.listdir(run_dir)))
    return {name: _tried(run_dir / name, _read_lines, give_up) or {**_NOTHING} for name in names}


def seal_file(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a small record."""
    content = read_small(path)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal_lines(path: Path, *, give_up: float = 0.0) -> dict[str, Any]:
    """Return length and SHA-256 of a growing file up to the end of its last complete line."""
    read = _tried(path, _read_lines, give_up) or _NOTHING
    return {"bytes": read["bytes"], "sha256": read["sha256"]}


_NOTHING = {"bytes": 0, "lines": 0, "sha256": hashlib.sha256().hexdigest()}


def _tried(path: Path, work: Callable[[Path], _T], give_up: float) -> _T | None:
    """Return what `work` returns; None for a file that is missing or not readable."""
    left_s = give_up - time.monotonic()
    try:
        return TransientErrors(_log).retried(path.name, partial(work, path), left_s)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s cannot be read: %s", path.name, error)
        return None


def _read_lines(path: Path) -> dict[str, Any]:
    """Return the seal of the complete lines; a line may be of any length."""
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
    return {"bytes": whole, "lines": lines, "sha256": whole_lines.hexdigest()}
