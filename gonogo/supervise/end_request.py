"""Requests to end a run: `.HALT` and `.kill` in its directory. Standard library only.

`.HALT` asks the trainer to leave with a checkpoint, and the keeper to kill after `until_mono`.
`.kill` asks the keeper to end every process now. The first writer wins, so a run has one cause. A
`.HALT` that a person creates by hand (empty) is an operator's.
"""

import stat
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import create_json, load_json
from gonogo.trainer.heartbeat_writer import READ

HALT_NAME = ".HALT"
KILL_NAME = ".kill"
HALT_LIMIT_S = 300.0  # The longest time that a trainer gets to leave by itself.
REASONS = frozenset({
    "completed", "nonzero_exit", "oom", "start_failed", "stalled", "too_slow", "non_finite",
    "diverged", "config_mismatch", "resource_limit", "hardware", "preflight_failed",
    "watcher_failed", "keeper_lost", "worker_lost", "node_lost", "preempted", "disk_full",
    "isolated", "deadline", "cancelled", "halted", "superseded",
})  # fmt: skip
ACTORS = frozenset({"trainer", "watchdog", "operator", "infra"})
"""The values of gonogo.contract.outcome (a test compares them)."""
_LARGEST = 1e15  # No clock shows as much.


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """Why and how a run is to end.

    `reason` is an outcome code and `ended_by` an actor. `at` is in Unix seconds, `until_mono` in
    seconds of this host's monotonic clock.
    """

    reason: str
    ended_by: str
    at: float
    text: str = ""
    key: str | None = None
    until_mono: float | None = None
    leave_s: float | None = None  # The time to leave in seconds, for keepers on other nodes.
    moving_s: float | None = None
    """The time of ranks that neither evaluate nor save; the watcher ends them then."""
    grace_s: float = 1.0


def ask_halt(run_dir: Path, request: EndRequest) -> bool:
    """Write `.HALT`; return False if there is one."""
    return create_json(run_dir / HALT_NAME, {"v": 1, **asdict(request)})


def ask_kill(run_dir: Path, request: EndRequest) -> bool:
    """Write `.kill`; return False if there is one."""
    return create_json(run_dir / KILL_NAME, {"v": 1, **asdict(request)})


def is_asked(path: Path) -> bool:
    """Return whether `.HALT` or `.kill` exists, of whatever kind it is."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def load_request(path: Path) -> EndRequest | None:
    """Return the request in `.HALT` or `.kill`; None: no file. Any other is made by hand."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    found = (load_json(path) if stat.S_ISREG(status.st_mode) else None) or {}
    known = {row.name: found[row.name] for row in fields(EndRequest) if row.name in found}
    typed = all(
        _is_of_type(known[row.name], row.type) for row in fields(EndRequest) if row.name in known
    )
    if not typed or known.get("reason") not in REASONS or known.get("ended_by") not in ACTORS:
        known = {"reason": "halted", "ended_by": "operator", "text": f"{path.name} made by hand"}
    text = str(known.get("text", "")).encode(errors="replace").decode()  # exit.json holds it
    return EndRequest(**{"at": status.st_mtime, **known, "text": text})


def asked_by(run_dir: Path) -> EndRequest | None:
    """Return the earlier of the two requests, or None."""
    found = [load_request(run_dir / name) for name in (HALT_NAME, KILL_NAME)]
    requests = [request for request in found if request is not None]
    return min(requests, key=lambda request: request.at, default=None)


def reads_no_halt(run_dir: Path) -> bool:
    """Return whether the program does not look for `.HALT`, or has not written a line yet."""
    return (run_dir / READ).exists() or not any(run_dir.glob("heartbeat_rank*.jsonl"))


def until_after(seconds: float) -> float:
    """Return the monotonic time in so many seconds, within HALT_LIMIT_S."""
    return time.monotonic() + min(seconds, HALT_LIMIT_S)


def _is_of_type(value: Any, kind: Any) -> bool:
    if type(value) in (int, float):
        return isinstance(0.0, kind) and abs(value) <= _LARGEST
    return isinstance(value, kind)
