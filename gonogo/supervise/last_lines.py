"""How one rank ended: its exit stamp, and the ends of its heartbeat file and log. Stdlib only."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.files import is_for_good, read_plain
from gonogo.log_errors import (
    MOST_ERROR_CHARS,
    MOST_ERROR_LINES,
    OF_VICTIMS,
    error_lines,
    last_error,
    log_rank,
    outside_lines,
    signs_in,
)
from gonogo.trainer.heartbeat_writer import ATTACHED

_TAIL_BYTES = 65_536
_LOG_BYTES = 16_384
"""The end of a log, in which the last traceback lies."""
_FROM_OUTSIDE = frozenset({9, 15})
"""Signals that no error of a program's own ends it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended, as in `exit_rank{N}.json`; `at` in Unix seconds.

    `code` and `signal` are both None if nobody saw how it ended.
    """

    code: int | None
    signal: int | None
    at: float
    lost_peer: bool = False
    """Whether its own last error was that another rank was gone."""

    @property
    def is_known(self) -> bool:
        """Whether anybody saw how it ended."""
        return self.code is not None or self.signal is not None

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        document = {"v": 1, "code": self.code, "signal": self.signal, "at": self.at}
        return {**document, **({"lost_peer": True} if self.lost_peer else {})}


def ended_of(document: Mapping[str, Any]) -> Ended:
    """Return the record in `exit_rank{N}.json`."""
    return Ended(
        code=document.get("code"),
        signal=document.get("signal"),
        at=document["at"],
        lost_peer=document.get("lost_peer") is True,
    )


def ranks_short(run_dir: Path, order: Mapping[str, Any]) -> list[int]:
    """Return the ranks that did not reach the last ordered step, if one was ordered."""
    steps = order.get("steps")
    ranks = range(int(order["world_size"]))
    return [] if steps is None else [r for r in ranks if not _reached(run_dir, r, int(steps))]


def is_read_only_program(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Return whether a program is known by its output alone: it never attached."""
    return bool(order.get("patterns")) and not (run_dir / ATTACHED).exists()


def left_early(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Return whether any rank wrote `done` before the last ordered step."""
    for rank in range(int(order["world_size"])):
        last = _heartbeats(run_dir, rank)[-1:]
        if b'"msg":"done"' in b"".join(last) and not _reached(run_dir, rank, order["steps"]):
            return True
    return False


def _reached(run_dir: Path, rank: int, steps: int) -> bool:
    """Return whether the last process of a rank completed the last ordered step."""
    boot = None
    for line in reversed(_heartbeats(run_dir, rank)):
        found = _parse(line)
        if found is None:
            continue
        boot = found.get("boot") if boot is None else boot
        step = found.get("step")
        ends = isinstance(step, int) and step >= steps and found.get("msg") in ("done", "step_end")
        if ends and found.get("boot") == boot:
            return True
    return False


def last_error_line(run_dir: Path, rank: int) -> Mapping[str, Any] | None:
    """Return the last heartbeat of a rank if it reports an error."""
    *_, last = [b"", *_heartbeats(run_dir, rank)]
    found = _parse(last)
    return found if found is not None and found.get("msg") == "error" else None


def error_of_cause(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> list[str]:
    """Return the lines that name the error of the rank that failed first, most important first.

    Only lines of the kernel and of a scheduler count for a killed rank.
    """
    if cause is None:
        return []
    log = _log_text(run_dir, order, cause)
    if ranks[cause].signal in _FROM_OUTSIDE:
        return outside_lines(log)
    shared = bool(order.get("command")) and len(ranks) > 1
    printed = error_lines(log, cause if shared else None, _steps(order))
    error = last_error_line(run_dir, cause)
    if error is None:
        return printed
    first, *rest = f"{error.get('type') or 'Error'}: {error.get('text') or ''}".splitlines()
    told = [line.strip()[:MOST_ERROR_CHARS] for line in (first, *rest)]
    lines = dict.fromkeys(line for line in (*told[:1], *printed, *told[1:]) if line)
    return list(lines)[:MOST_ERROR_LINES]


def last_words(
    run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended, *, alone: bool
) -> str:
    """Return the error that a rank ended with; empty if a signal from outside ended it."""
    if ended.signal in _FROM_OUTSIDE:
        return ""
    error = last_error_line(run_dir, rank) or {}
    shared = bool(order.get("command")) and not alone
    printed = last_error(_log_text(run_dir, order, rank), rank if shared else None, _steps(order))
    return f"{error.get('type') or ''}: {error.get('text') or ''}\n{printed}"


def lost_a_peer(run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended) -> bool:
    """Return whether the error of a failed rank is that another rank was gone."""
    if ended.code == 0:
        return False
    return bool(signs_in(last_words(run_dir, order, rank, ended, alone=False)) & OF_VICTIMS)


def load_tail(path: Path, limit: int = _TAIL_BYTES) -> bytes:
    """Return the last bytes of a file; none if it is missing, or no regular file."""
    try:
        with read_plain(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit))
            return stream.read()
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or is_for_good(error)):
            raise
        return b""


def _steps(order: Mapping[str, Any]) -> list[re.Pattern[str]]:
    return [re.compile(text) for text in order.get("patterns") or ()]


def _log_text(run_dir: Path, order: Mapping[str, Any], rank: int) -> str:
    path = run_dir / f"rank{log_rank(order, rank)}.log"
    return load_tail(path, _LOG_BYTES).decode(errors="replace")


def _heartbeats(run_dir: Path, rank: int) -> list[bytes]:
    return load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
