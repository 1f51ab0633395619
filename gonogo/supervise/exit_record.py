"""What does exit.json say? Built from requests, exit stamps and the ranks' last lines; stdlib only.

Who asked first names the cause; a trainer that nobody asked ended by itself: completed when every
rank left with 0 and had reached the last ordered step, else nonzero_exit (oom where its own words
say so). A program that is only read, and left with 0, completed too: what it did and did not print
nobody knows, and the gate misses the steps. Every end says whose it is: the run, the attempt, the
digest of the order, and how much of watch.jsonl and of every heartbeat file stood written when the
run ended, so that no other run's file can stand in for it, and nothing can be added to it.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.last_words import last_error
from gonogo.signs import OF_VICTIMS, UNMISTAKABLE, signs_in
from gonogo.supervise.end_request import EndRequest
from gonogo.trainer.line_file import ATTACHED

HALTED_CODE = 3
REQUESTS = (".HALT", ".kill")
_TAIL_BYTES = 65_536
_CHUNK_BYTES = 2**20
_SIGNS_BYTES = 16_384
"""Of the end of a log in which known words are looked for: the last traceback, not the story."""
_TERM = 15
_FROM_OUTSIDE = frozenset({9, _TERM})
"""Signals that no error of a program's own ends it by."""
_ENDED_BY_ITSELF = "nonzero_exit"
_OOM = "oom"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended; `at` in Unix seconds.

    One of `code` and `signal` is set, or neither: it ended, and nobody saw how.
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
        return {**document, "lost_peer": True} if self.lost_peer else document


def ended_of(document: Mapping[str, Any]) -> Ended:
    """Return the record in exit_rank{N}.json."""
    return Ended(
        code=document.get("code"),
        signal=document.get("signal"),
        at=document["at"],
        lost_peer=document.get("lost_peer") is True,
    )


def build_exit(
    *,
    run_dir: Path,
    order: Mapping[str, Any],
    request: EndRequest | None,
    agent: Ended | None,
    ranks: Mapping[int, Ended],
    now: float,
) -> dict[str, Any]:
    """Return exit.json.

    Args:
        run_dir: where the ranks' last lines are.
        order: the order as data.
        request: what asked for the end first, if anything did.
        agent: how torchrun ended.
        ranks: how each rank ended.
        now: Unix seconds.
    """
    cause = _first_failed(run_dir, ranks)
    reason, ended_by, text = _why(run_dir, order, request, agent, ranks, cause)
    seen = [ended for ended in ranks.values() if ended.is_known]
    shown = ranks[cause] if cause is not None else None
    if shown is None or not shown.is_known:
        shown = None if ranks and len(seen) == len(ranks) else agent
    code = shown.code if shown else 0
    return {
        "v": 1,
        "code": code,
        "signal": shown.signal if shown else None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted(ranks.items())},
        "signs": sorted(_signs(run_dir, order, ranks, cause))
        if reason in (_ENDED_BY_ITSELF, _OOM)
        else [],
        **build_binding(run_dir, order),
    }


def build_refusal(
    reason: str, ended_by: str, text: str, *, run_dir: Path, order: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return exit.json of a run that was not started.

    Args:
        reason: an outcome code.
        ended_by: an actor.
        text: why, in a sentence.
        run_dir: the run's directory.
        order: the order as data.
        now: Unix seconds.
    """
    return {
        "v": 1,
        "code": None,
        "signal": None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": None,
        "ranks": {},
        **build_binding(run_dir, order),
    }


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
        "heartbeats": {
            path.name: count_lines(path) for path in sorted(run_dir.glob("heartbeat_rank*.jsonl"))
        },
    }


def count_lines(path: Path) -> dict[str, int]:
    """Return how many complete lines stand in a file, and up to which byte."""
    lines, size, whole = 0, 0, 0
    try:
        with path.open("rb") as stream:
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


def seal_lines(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a growing file up to the end of its last complete line."""
    sealed, size, torn = hashlib.sha256(), 0, b""
    try:
        with path.open("rb") as stream:
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


def _why(
    run_dir: Path,
    order: Mapping[str, Any],
    request: EndRequest | None,
    agent: Ended | None,
    ranks: Mapping[int, Ended],
    cause: int | None,
) -> tuple[str, str, str]:
    """Return reason, actor and text."""
    whole = len(ranks) >= count_programs(order)
    clean = whole and all(ended.code == 0 for ended in ranks.values())
    if clean and _has_all_steps(run_dir, order):
        return "completed", "trainer", ""
    if clean and request is None and _is_read(run_dir, order) and not _left_early(run_dir, order):
        text = f"it ended with 0, and its output does not show step {order['steps']} of every rank"
        return "completed", "trainer", text
    asked = request is not None and request.reason != _ENDED_BY_ITSELF
    if request is not None and asked and not _died_on_the_way(request, ranks):
        return request.reason, request.ended_by, request.text
    if clean:
        return _ENDED_BY_ITSELF, "trainer", "every rank ended with 0 before the last ordered step"
    text = (
        request.text if request is not None and request.text else _say(order, cause, ranks, agent)
    )
    if "out_of_memory" in _signs(run_dir, order, ranks, cause):
        return _OOM, "trainer", text
    return _ENDED_BY_ITSELF, "trainer", text


def count_programs(order: Mapping[str, Any]) -> int:
    """Return how many programs are started, each behind a wrapper: a command is one for all."""
    return 1 if order.get("command") else int(order["world_size"])


def _has_all_steps(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Say whether every rank reached the last ordered step; where none was ordered, they did."""
    steps = order.get("steps")
    ranks = range(int(order["world_size"]))
    return steps is None or all(_reached_end(run_dir, rank, int(steps)) for rank in ranks)


def _is_read(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Say whether the program is known by its output alone: it never attached."""
    return bool(order.get("patterns")) and not (run_dir / ATTACHED).exists()


def _left_early(run_dir: Path, order: Mapping[str, Any]) -> bool:
    """Say whether any rank was done before the last ordered step, as its last line says."""
    for rank in range(int(order["world_size"])):
        last = load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()[-1:]
        if b'"msg":"done"' in b"".join(last) and not _reached_end(run_dir, rank, order["steps"]):
            return True
    return False


def _died_on_the_way(request: EndRequest, ranks: Mapping[int, Ended]) -> bool:
    """Say whether an operator's halt met a rank that failed by itself.

    A rank that the watchdog asked to leave was sick already: whatever it does then, the cause
    stays.
    """
    if request.ended_by != "operator":
        return False
    return any(
        ended.code not in (0, HALTED_CODE, None) and ended.at >= request.at
        for ended in ranks.values()
    )


def _first_failed(run_dir: Path, ranks: Mapping[int, Ended]) -> int | None:
    """Return the rank that failed first, and none that only missed another or was told to end.

    Where nobody saw any of them fail, it is the first whose last line is an error of its own.
    """
    failed = {rank: ended for rank, ended in ranks.items() if ended.code or ended.signal}
    if failed:

        def order(rank: int) -> tuple[bool, bool, float, int]:
            ended = failed[rank]
            return ended.signal == _TERM, ended.lost_peer, ended.at, rank

        return min(failed, key=order)
    lines = {rank: error for rank in ranks if (error := _last_error_line(run_dir, rank))}
    said = {rank: row for rank, row in lines.items() if not signs_in(str(row)) & OF_VICTIMS}
    return min(said, key=lambda rank: (said[rank].get("ts", 0.0), rank), default=None)


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
    alone = command and len(ranks) == 1
    return f"{'the command' if alone else f'rank {cause}'} ended {_how(ended)}"


def _how(ended: Ended) -> str:
    return f"by signal {ended.signal}" if ended.signal else f"with code {ended.code}"


def _last_error_line(run_dir: Path, rank: int) -> Mapping[str, Any] | None:
    """Return the last line of a rank that says it leaves by an error, if it says so."""
    *_, last = [b"", *load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines()]
    try:
        found = json.loads(last)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("msg") == "error" else None


def _reached_end(run_dir: Path, rank: int, steps: int) -> bool:
    """Say whether a rank's last lines show `done`, or the last ordered step completed."""
    for line in load_tail(run_dir / f"heartbeat_rank{rank}.jsonl").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if not isinstance(found, dict):
            continue
        step = found.get("step")
        if isinstance(step, int) and step >= steps and found.get("msg") in ("done", "step_end"):
            return True
    return False


def _signs(
    run_dir: Path, order: Mapping[str, Any], ranks: Mapping[int, Ended], cause: int | None
) -> set[str]:
    """Return the known words of the error that the rank which failed first ended with.

    Its own last line tells it, else the end of the log. Who was killed ended by no error: what
    its log tells was survived.
    """
    if cause is None:
        return set()
    shared = bool(order.get("command"))
    return _signs_of(run_dir, order, cause, ranks[cause], alone=shared and len(ranks) == 1)


def lost_a_peer(run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended) -> bool:
    """Say whether a rank that has failed says itself that another was gone."""
    if ended.code == 0:
        return False
    return bool(_signs_of(run_dir, order, rank, ended, alone=False) & OF_VICTIMS)


def _signs_of(
    run_dir: Path, order: Mapping[str, Any], rank: int, ended: Ended, *, alone: bool
) -> set[str]:
    if ended.signal in _FROM_OUTSIDE:
        return set()
    error = _last_error_line(run_dir, rank) or {}
    told = f"{error.get('type') or ''}: {error.get('text') or ''}"
    shared = bool(order.get("command"))
    log = _text(run_dir / f"rank{0 if shared else rank}.log", _SIGNS_BYTES)
    steps = [re.compile(text) for text in order.get("patterns") or ()]
    said = last_error(log, rank if shared and not alone else None, steps)
    return signs_in(f"{told}\n{said}") & UNMISTAKABLE


def _text(path: Path, limit: int = _TAIL_BYTES) -> str:
    return load_tail(path, limit).decode(errors="replace")


def load_tail(path: Path, limit: int = _TAIL_BYTES) -> bytes:
    """Return the last bytes of a file; none when it is missing."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit))
            return stream.read()
    except FileNotFoundError:
        return b""
