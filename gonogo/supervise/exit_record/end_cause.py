"""The cause of a run's end: the first request, else the rank that failed first. Stdlib only."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.log_errors import OF_VICTIMS, signs_in
from gonogo.supervise.end_request import KILL_NAME, EndRequest, load_request
from gonogo.supervise.exit_record.last_lines import (
    HALTED_CODE,
    Ended,
    gave_its_error,
    got_no_go,
    is_read_only_program,
    last_error_line,
    last_words,
    left_early,
    met_failing_disk,
    met_read_only_disk,
    ranks_short,
)

_KILL, _TERM = 9, 15
OOM_WITHIN_S = 10.0
"""A death by SIGKILL so close to a kill of the kernel for want of memory is that kill."""
ENDED_BY_ITSELF = "nonzero_exit"
OOM = "oom"
DISK_FULL = "disk_full"
FULL_BYTES = 64 * 2**20
"""With less room than this a disk is full; D19 has the same limit."""
SPEECHLESS_BYTES = 16 * 2**20
"""With less room than this a disk may have lost a rank's last lines."""
FULL_FILES = 16
"""A disk with fewer free inodes is full, too."""

Cause = tuple[str, str, str]
"""Reason (an outcome code), actor and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What is known about a run's end; the fields are those of `build_exit`."""

    run_dir: Path
    order: Mapping[str, Any]
    request: EndRequest | None
    agent: Ended | None
    ranks: Mapping[int, Ended]
    first: int | None
    """The rank that failed first."""
    oom_at: float | None
    unheld: frozenset[int]


def first_failed(run_dir: Path, ranks: Mapping[int, Ended]) -> int | None:
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


def find_cause(end: End) -> Cause:
    """Return the cause of an end."""
    run_dir, order, request = end.run_dir, end.order, end.request
    command_left = bool(order.get("command")) and end.agent is not None and end.agent.code == 0
    clean = len(end.ranks) >= count_programs(order) and all(
        ended.code == 0 or (command_left and not ended.is_known) for ended in end.ranks.values()
    )
    if clean and not ranks_short(run_dir, order):
        return "completed", "trainer", ""
    read_only = request is None and is_read_only_program(run_dir, order)
    if clean and read_only and not left_early(run_dir, order):
        text = f"it ended with 0, and its output does not show step {order['steps']} of every rank"
        return "completed", "trainer", text
    if request is not None and request.reason != ENDED_BY_ITSELF and not _died_meanwhile(end):
        return request.reason, request.ended_by, _text_of(run_dir, request)
    if clean:
        return _ended_with_0(end)
    return _failed(end)


def count_programs(order: Mapping[str, Any]) -> int:
    """Return how many wrapped programs are started: one a rank, or a command once a node."""
    return int(order.get("nodes") or 1) if order.get("command") else int(order["world_size"])


def was_killed_for_memory(ended: Ended, oom_at: float | None) -> bool:
    """Return whether a process was killed about when the kernel killed for want of memory.

    Args:
        ended: how it ended; a shell reports SIGKILL of its child as code 137.
        oom_at: Unix seconds; None: never.
    """
    killed = ended.signal == _KILL or ended.code == 128 + _KILL
    return killed and _is_near(ended, oom_at)


def _ended_with_0(end: End) -> Cause:
    """Return the cause where every rank left with 0 before the last step was shown."""
    silent = all(_is_speechless(end, rank) for rank in end.ranks)
    if silent and not left_early(end.run_dir, end.order):
        text = "every rank ended with 0; the disk took no word of the last steps"
        return DISK_FULL, "trainer", text
    short = ranks_short(end.run_dir, end.order)
    some = f"rank {', '.join(map(str, short))}"
    who = "every rank" if len(short) == int(end.order["world_size"]) else some
    return ENDED_BY_ITSELF, "trainer", f"{who} ended with 0 before the last ordered step"


def _failed(end: End) -> Cause:
    """Return the cause where a program failed, and no other request explains it."""
    first, oom_at = end.first, end.oom_at
    if first is not None and was_killed_for_memory(end.ranks[first], oom_at):
        return OOM, "trainer", f"{_name(end, first)} was killed by the kernel: out of memory"
    if end.unheld and (first is None or first in end.unheld):
        who = _name(end, min(end.unheld) if first is None else first)
        text = f"the wrapper of {who} was killed, and the program with it"
        return "keeper_lost", "infra", text
    if first is not None and got_no_go(end.run_dir, end.order, first):
        text = f"{_name(end, first)} was ready, and nobody let it begin (no .GO came)"
        return "watcher_failed", "infra", text
    text = (end.request.text if end.request is not None else "") or _describe(end)
    if first is not None and end.ranks[first].code and _is_near(end.ranks[first], oom_at):
        text += "; the kernel killed a process for want of memory about then"
    words = "" if first is None else last_words(end.run_dir, end.order, end.ranks, first)
    signs = signs_in(words)
    if "out_of_memory" in signs:
        return OOM, "trainer", text
    disks = end.run_dir, end.run_dir / "checkpoints"
    if "no_space" in signs and any(map(_is_full, disks)):
        return DISK_FULL, "trainer", text
    if met_read_only_disk(words) and any(map(_is_read_only, disks)):
        return DISK_FULL, "trainer", f"{text}: the file system that it writes to is read-only"
    if met_failing_disk(words):
        return DISK_FULL, "trainer", f"{text}: the file system failed"
    if first is not None and end.ranks[first].code and _is_speechless(end, first):
        return DISK_FULL, "trainer", f"{text}; the disk took no word of why"
    return ENDED_BY_ITSELF, "trainer", text


def _text_of(run_dir: Path, request: EndRequest) -> str:
    """Return why the end was requested; of an operator both requests."""
    kill = load_request(run_dir / KILL_NAME)
    if kill is None or request.ended_by != "operator" or kill.ended_by != "operator":
        return request.text
    return "; ".join(dict.fromkeys(text for text in (request.text, kill.text) if text))


def _died_meanwhile(end: End) -> bool:
    """Return whether a rank failed by itself between an operator's halt and kill."""
    request = end.request
    if request is None or request.ended_by != "operator":
        return False
    kill = load_request(end.run_dir / KILL_NAME)
    until = math.inf if kill is None or kill.at <= request.at else kill.at
    return any(
        ended.code not in (0, HALTED_CODE, None) and request.at <= ended.at < until
        for ended in end.ranks.values()
    )


def _describe(end: End) -> str:
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


def _name(end: End, rank: int) -> str:
    alone = bool(end.order.get("command")) and len(end.ranks) <= 1
    return "the command" if alone else f"rank {rank}"


def _how(ended: Ended) -> str:
    return f"by signal {ended.signal}" if ended.signal else f"with code {ended.code}"


def _is_near(ended: Ended, oom_at: float | None) -> bool:
    return oom_at is not None and abs(oom_at - ended.at) <= OOM_WITHIN_S


def _is_speechless(end: End, rank: int) -> bool:
    """Return whether a rank shows no error, and the disk has no room for one."""
    room = _free(end.run_dir)
    full = room is not None and room[0] < SPEECHLESS_BYTES
    return full and not gave_its_error(end.run_dir, end.order, rank)


def _is_full(path: Path) -> bool:
    room = _free(path)
    return room is not None and (room[0] < FULL_BYTES or room[1] < FULL_FILES)


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _free(path: Path) -> tuple[float, float] | None:
    """Return the free bytes and inodes of a disk; None where nobody counts them."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    if not found.f_blocks:
        return None
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files > 0 else math.inf
