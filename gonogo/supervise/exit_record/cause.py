"""Why did a run end? Who asked first, else the rank that failed first. Stdlib only."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gonogo.log_errors import OF_VICTIMS, signs_in
from gonogo.supervise.end_request import KILL_NAME, EndRequest, load_request
from gonogo.supervise.exit_record.ended import HALTED_CODE, Ended
from gonogo.supervise.exit_record.last_lines import (
    is_read,
    last_error_line,
    left_early,
    met_failing_disk,
    met_read_only,
    ranks_short,
    said_why,
    signs_of_cause,
    was_not_let_begin,
)

_KILL, _TERM = 9, 15
OOM_WITHIN_S = 10.0
"""So close to a kill for want of memory, a death by SIGKILL is that kill."""
ENDED_BY_ITSELF = "nonzero_exit"
OOM = "oom"
DISK_FULL = "disk_full"
FULL_BYTES = 64 * 2**20
"""With less room than this a disk is full for everybody: what D19 says, too."""
SPEECHLESS_BYTES = 16 * 2**20
"""With less than this it may have refused what a rank said at its end: the room that runs hold for
their last words, 1 MiB each, may have been given up by then."""
FULL_FILES = 16
"""Nor does it take a checkpoint with fewer inodes (`f_files` is 0 where none are counted)."""
_UNWATCHED = "watcher_failed"
_UNHELD = "keeper_lost"


def first_failed(run_dir: Path, ranks: Mapping[int, Ended]) -> int | None:
    """Return the rank that failed first, and none that only missed another or was told to end.

    Where all did or were, it is the first of them: torchrun tells none to end before one has
    failed. Where nobody saw any of them fail, it is the first whose last line is an error of its
    own.
    """
    failed = {rank: ended for rank, ended in ranks.items() if ended.code or ended.signal}
    if failed:

        def order(rank: int) -> tuple[bool, bool, float, int]:
            ended = failed[rank]
            return ended.signal == _TERM, ended.lost_peer, ended.at, rank

        if all(ended.signal == _TERM or ended.lost_peer for ended in failed.values()):
            return min(failed, key=lambda rank: (failed[rank].at, rank))

        return min(failed, key=order)
    lines = {rank: error for rank in ranks if (error := last_error_line(run_dir, rank))}
    said = {rank: row for rank, row in lines.items() if not signs_in(str(row)) & OF_VICTIMS}
    return min(said, key=lambda rank: (said[rank].get("ts", 0.0), rank), default=None)


def why(
    run_dir: Path,
    order: Mapping[str, Any],
    request: EndRequest | None,
    agent: Ended | None,
    ranks: Mapping[int, Ended],
    cause: int | None,
    oom_at: float | None = None,
    unheld: frozenset[int] = frozenset(),
) -> tuple[str, str, str]:
    """Return reason, actor and text.

    Where a command left with 0, a rank of whose end nobody knows failed no run: nor did it pass.
    A program that its wrapper's death took along did not end by itself.
    """
    whole = len(ranks) >= count_programs(order)
    left = bool(order.get("command")) and agent is not None and agent.code == 0
    clean = whole and all(
        ended.code == 0 or (left and not ended.is_known) for ended in ranks.values()
    )
    if clean and not ranks_short(run_dir, order):
        return "completed", "trainer", ""
    if clean and request is None and is_read(run_dir, order) and not left_early(run_dir, order):
        text = f"it ended with 0, and its output does not show step {order['steps']} of every rank"
        return "completed", "trainer", text
    asked = request is not None and request.reason != ENDED_BY_ITSELF
    if request is not None and asked and not _died_on_the_way(run_dir, request, ranks):
        return request.reason, request.ended_by, _told(run_dir, request)
    if clean:
        return _ended_with_0(run_dir, order, ranks)
    if cause is not None and was_killed_for_memory(ranks[cause], oom_at):
        text = f"{_who(order, cause, ranks)} was killed by the kernel: out of memory"
        return OOM, "trainer", text
    if unheld and (cause is None or cause in unheld):
        who = _who(order, min(unheld) if cause is None else cause, ranks)
        return _UNHELD, "infra", f"the wrapper of {who} was killed, and the program with it"
    if cause is not None and was_not_let_begin(run_dir, order, cause):
        text = f"{_who(order, cause, ranks)} was ready, and nobody let it begin (no .GO came)"
        return _UNWATCHED, "infra", text
    text = (
        request.text if request is not None and request.text else _say(order, cause, ranks, agent)
    )
    if cause is not None and ranks[cause].code and _is_about(ranks[cause], oom_at):
        text += "; the kernel killed a process for want of memory about then"
    return _by_itself(run_dir, order, ranks, cause, text)


def _ended_with_0(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended]
) -> tuple[str, str, str]:
    """Return reason, actor and text where every rank left with 0, and the last step is not shown.

    One that had come to its end says so, unless the disk took neither that nor its last steps.
    """
    silent = all(_kept_silent(run_dir, order, rank, ended) for rank, ended in ranks.items())
    if silent and not left_early(run_dir, order):
        text = "every rank ended with 0; the disk took no word of the last steps"
        return DISK_FULL, "trainer", text
    short = ranks_short(run_dir, order)
    some = f"rank {', '.join(map(str, short))}"
    who = "every rank" if len(short) == int(order["world_size"]) else some
    return ENDED_BY_ITSELF, "trainer", f"{who} ended with 0 before the last ordered step"


def _by_itself(
    run_dir: Path,
    order: Mapping[str, Any],
    ranks: Mapping[int, Ended],
    cause: int | None,
    text: str,
) -> tuple[str, str, str]:
    """Return reason, actor and text where nobody asked: what the program itself ran out of, if so.

    A disk that is full, or refused all for a while, may have kept it from saying so.
    """
    signs = signs_of_cause(run_dir, order, ranks, cause)
    if "out_of_memory" in signs:
        return OOM, "trainer", text
    disks = run_dir, run_dir / "checkpoints"
    if "no_space" in signs and any(_is_full(disk) for disk in disks):
        return DISK_FULL, "trainer", text
    if met_read_only(run_dir, order, ranks, cause) and any(_is_read_only(disk) for disk in disks):
        return DISK_FULL, "trainer", f"{text}: the file system that it writes to is read-only"
    refused = cause is not None and ranks[cause].disk_refused
    if refused and met_failing_disk(run_dir, order, ranks, cause):
        return DISK_FULL, "trainer", f"{text}: the file system of the run failed, for us too"
    ends = ranks if cause is None else {cause: ranks[cause]}
    untold = _is_untold(ranks) if cause is None else bool(ranks[cause].code)
    if untold and all(_kept_silent(run_dir, order, rank, ended) for rank, ended in ends.items()):
        return DISK_FULL, "trainer", f"{text}; the disk took no word of why"
    return ENDED_BY_ITSELF, "trainer", text


def _is_untold(ranks: Mapping[int, Ended]) -> bool:
    """Say whether nobody could tell of any rank how it ended, for the disk refused that."""
    return bool(ranks) and all(e.disk_refused and not e.is_known for e in ranks.values())


def _told(run_dir: Path, request: EndRequest) -> str:
    """Return why the end was asked for; an operator's with what became of the leaving."""
    kill = load_request(run_dir / KILL_NAME)
    if kill is None or request.ended_by != "operator" or kill.ended_by != "operator":
        return request.text
    return "; ".join(dict.fromkeys(text for text in (request.text, kill.text) if text))


def count_programs(order: Mapping[str, Any]) -> int:
    """Return how many programs are started, each behind a wrapper: a command once a node."""
    return int(order.get("nodes") or 1) if order.get("command") else int(order["world_size"])


def _died_on_the_way(run_dir: Path, request: EndRequest, ranks: Mapping[int, Ended]) -> bool:
    """Say whether an operator's halt met a rank that failed by itself.

    A rank that the watchdog asked to leave was sick already: whatever it does then, the cause
    stays. So it does of one that was ended because it had not left.
    """
    if request.ended_by != "operator":
        return False
    kill = load_request(run_dir / KILL_NAME)
    until = math.inf if kill is None or kill.at <= request.at else kill.at
    return any(
        ended.code not in (0, HALTED_CODE, None) and request.at <= ended.at < until
        for ended in ranks.values()
    )


def _say(
    order: Mapping[str, Any], cause: int | None, ranks: Mapping[int, Ended], agent: Ended | None
) -> str:
    command = bool(order.get("command"))
    if cause is None:
        how = f" {_how(agent)}" if agent else ""
        if command:
            return f"the command ended{how}, and nobody saw which rank failed"
        how = f" (code {agent.code}, signal {agent.signal})" if agent else ""
        return f"torchrun ended{how} before its ranks had"
    ended = ranks[cause] if ranks[cause].is_known or agent is None else agent
    return f"{_who(order, cause, ranks)} ended {_how(ended)}"


def was_killed_for_memory(ended: Ended, oom_at: float | None) -> bool:
    """Say whether a process was killed, about when the kernel killed for want of memory.

    Args:
        ended: how it ended; a shell tells another's SIGKILL by code 137.
        oom_at: when that was seen, in Unix seconds; None: never.
    """
    killed = ended.signal == _KILL or ended.code == 128 + _KILL
    return killed and _is_about(ended, oom_at)


def _is_about(ended: Ended, oom_at: float | None) -> bool:
    """Say whether the kernel killed for want of memory about when a process ended.

    One that leaves with an error then may be the parent of whom it killed, as of a loader's worker.
    """
    return oom_at is not None and abs(oom_at - ended.at) <= OOM_WITHIN_S


def _kept_silent(run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended) -> bool:
    """Say whether a rank tells of no error, and the disk took or takes no word of that."""
    room = _free(run_dir)
    full = room is not None and room[0] < SPEECHLESS_BYTES
    return (full or ended.disk_refused) and not said_why(run_dir, order, rank)


def _is_full(path: Path) -> bool:
    """Say whether the disk itself has no room or no inodes, and not a quota on it."""
    room = _free(path)
    return room is not None and (room[0] < FULL_BYTES or room[1] < FULL_FILES)


def _is_read_only(path: Path) -> bool:
    """Say whether nobody may write to a disk: the kernel met an error of it, or it fails over."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _free(path: Path) -> tuple[float, float] | None:
    """Return how many bytes and inodes are free on a disk; None where nobody can tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    if not found.f_blocks:  # it counts none
        return None
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files > 0 else math.inf


def _who(order: Mapping[str, Any], cause: int, ranks: Mapping[int, Ended]) -> str:
    alone = bool(order.get("command")) and len(ranks) <= 1
    return "the command" if alone else f"rank {cause}"


def _how(ended: Ended) -> str:
    return f"by signal {ended.signal}" if ended.signal else f"with code {ended.code}"
