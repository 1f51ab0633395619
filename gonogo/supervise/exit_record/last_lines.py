"""What did the ranks say last? The ends of their heartbeat files and logs; stdlib only."""

import json
import re
from collections.abc import Mapping
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
from gonogo.supervise.exit_record.ended import Ended
from gonogo.trainer.line_file import ATTACHED
from gonogo.trainer.run_dir import NOT_LET_BEGIN, UNTOLD

_TAIL_BYTES = 65_536
_SIGNS_BYTES = 16_384
"""Of the end of a log in which known words are looked for: the last traceback, not the story."""
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception)\b", re.M)
"""How the last line of a traceback begins."""
_READ_ONLY = re.compile(r"Read-only file system|\bEROFS\b", re.I)
_FAILING = re.compile(
    r"Stale file handle|\bESTALE\b|Input/output error|\bEIO\b|Transport endpoint is not connected",
    re.I,
)
"""What a file system says whose server was started anew, whose disk fails, whose program died."""
_FROM_OUTSIDE = frozenset({9, 15})
"""Signals that no error of a program's own ends it by."""


def ranks_short(run_dir: Path, order: Mapping[str, Any]) -> list[int]:
    """Return the ranks that did not reach the last ordered step; none where none was ordered."""
    steps = order.get("steps")
    ranks = range(int(order["world_size"]))
    return [] if steps is None else [r for r in ranks if not _reached_end(run_dir, r, int(steps))]


def is_read(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Say whether the program is known by its output alone: it never attached."""
    return bool(order.get("patterns")) and not (run_dir / ATTACHED).exists()


def left_early(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Say whether any rank was done before the last ordered step, as its last line says."""
    for rank in range(int(order["world_size"])):
        last = load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()[-1:]
        if b'"msg":"done"' in b"".join(last) and not _reached_end(run_dir, rank, order["steps"]):
            return True
    return False


def _reached_end(run_dir: Path, rank: int, steps: int) -> bool:
    """Say whether the last process of a rank says `done` of the last ordered step, or completed it.

    A process before it may have: what came after that did not end there.
    """
    boot = None
    for line in reversed(load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict):
            continue
        boot = found.get("boot") if boot is None else boot
        if found.get("boot") != boot:
            continue
        step = found.get("step")
        if isinstance(step, int) and step >= steps and found.get("msg") in ("done", "step_end"):
            return True
    return False


def last_error_line(run_dir: Path, rank: int) -> Mapping[str, Any] | None:
    """Return the last line of a rank that says it leaves by an error, if it says so."""
    *_, last = [b"", *load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()]
    try:
        found = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("msg") == "error" else None


def signs_of_cause(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> set[str]:
    """Return the known words of the error that the rank which failed first ended with.

    Its own last line tells it, else the end of the log. Who was killed ended by no error: what
    its log tells was survived.
    """
    return signs_in(_words_of_cause(run_dir, order, ranks, cause))


def error_of_cause(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> list[str]:
    """Return the lines that name the error of the rank that failed first, the most important first.

    The last line of its heartbeats comes first, then the end of its log (`last_words.error_lines`).
    Of a killed rank only lines of the kernel and of a scheduler count: it ended by no error.
    """
    if cause is None:
        return []
    shared = bool(order.get("command"))
    log = _text(run_dir / f"rank{log_rank(order, cause)}.log", _SIGNS_BYTES)
    if ranks[cause].signal in _FROM_OUTSIDE:
        return outside_lines(log)
    steps = [re.compile(text) for text in order.get("patterns") or ()]
    said = error_lines(log, cause if shared and len(ranks) > 1 else None, steps)
    error = last_error_line(run_dir, cause)
    if error is None:
        return said
    first, *rest = f"{error.get('type') or 'Error'}: {error.get('text') or ''}".splitlines()
    told = [line.strip()[:MOST_ERROR_CHARS] for line in (first, *rest)]
    return list(dict.fromkeys(line for line in (*told[:1], *said, *told[1:]) if line))[
        :MOST_ERROR_LINES
    ]


def met_read_only(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> bool:
    """Say whether the rank that failed first ended by a write to a read-only file system."""
    return _READ_ONLY.search(_words_of_cause(run_dir, order, ranks, cause)) is not None


def met_failing_disk(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> bool:
    """Say whether the rank that failed first ended by a file system that fails."""
    return _FAILING.search(_words_of_cause(run_dir, order, ranks, cause)) is not None


def _words_of_cause(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> str:
    if cause is None:
        return ""
    shared = bool(order.get("command"))
    return _last_words(run_dir, order, cause, ranks[cause], alone=shared and len(ranks) == 1)


def lost_a_peer(run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended) -> bool:
    """Say whether a rank that has failed says itself that another was gone."""
    if ended.code == 0:
        return False
    return bool(signs_in(_last_words(run_dir, order, rank, ended, alone=False)) & OF_VICTIMS)


def _last_words(
    run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended, *, alone: bool
) -> str:
    """Return the error that a rank ended with, as its last line and the end of its log tell it."""
    if ended.signal in _FROM_OUTSIDE:
        return ""
    error = last_error_line(run_dir, rank) or {}
    told = f"{error.get('type') or ''}: {error.get('text') or ''}"
    shared = bool(order.get("command"))
    log = _text(run_dir / f"rank{log_rank(order, rank)}.log", _SIGNS_BYTES)
    steps = [re.compile(text) for text in order.get("patterns") or ()]
    said = last_error(log, rank if shared and not alone else None, steps)
    return f"{told}\n{said}"


def said_why(run_dir: Path, order: Mapping[str, Any], rank: int) -> bool:
    """Say whether a rank that failed says so itself: by its last line, or an error in its log."""
    if last_error_line(run_dir, rank) is not None:
        return True
    log = _text(run_dir / f"rank{log_rank(order, rank)}.log", _SIGNS_BYTES)
    return _ERROR.search(last_error(log)) is not None


def was_not_let_begin(run_dir: Path, order: Mapping[str, Any], rank: int) -> bool:
    """Say whether a rank gave up waiting for `.GO`, which it was owed: it had told who it is."""
    if (run_dir / ".GO").exists():
        return False
    error = last_error_line(run_dir, rank) or {}
    log = _text(run_dir / f"rank{log_rank(order, rank)}.log", _SIGNS_BYTES)
    return NOT_LET_BEGIN in f"{error.get('text')}\n{log}" and UNTOLD not in log


def _text(path: Path, limit: int = _TAIL_BYTES) -> str:
    return load_tail(path, limit).decode(errors="replace")


def load_tail(path: Path, limit: int = _TAIL_BYTES) -> bytes:
    """Return the last bytes of a file; none when it is missing, or no file at all."""
    try:
        with read_plain(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit))
            return stream.read()
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or is_for_good(error)):
            raise
        return b""
