"""How is a run asked to end? Two files in its directory; the first writer wins. Stdlib only.

`.HALT` asks the trainer to leave with a checkpoint, and the keeper to kill when `until_mono` has
passed; `.kill` asks the keeper to end every process now. Both say why, so that whatever dies in
between, the end is completed once and `exit.json` names its cause. A `.HALT` made by hand (empty)
is an operator's.
"""

import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import create_json, load_json
from gonogo.trainer.line_file import READ

HALT_NAME = ".HALT"
KILL_NAME = ".kill"
HALT_LIMIT_S = 300.0
"""A trainer gets at most this long to leave by itself."""
REASONS = frozenset(
    {
        "completed",
        "nonzero_exit",
        "oom",
        "start_failed",
        "stalled",
        "too_slow",
        "non_finite",
        "diverged",
        "config_mismatch",
        "resource_limit",
        "hardware",
        "preflight_failed",
        "watcher_failed",
        "keeper_lost",
        "worker_lost",
        "node_lost",
        "preempted",
        "disk_full",
        "isolated",
        "deadline",
        "cancelled",
        "halted",
        "superseded",
    }
)
ACTORS = frozenset({"trainer", "watchdog", "operator", "infra"})
"""Outcome codes and actors, which stand in gonogo.contract.outcome (a test compares them)."""
_LARGEST = 1e15
"""No clock says as much, and floats count on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """Why and how a run is to end.

    `reason` is an outcome code and `ended_by` an actor (gonogo.contract.outcome); `at` is in Unix
    seconds, `until_mono` in seconds of this host's monotonic clock; `dump` asks the ranks for
    their stacks before they are ended.
    """

    reason: str
    ended_by: str
    at: float
    text: str = ""
    key: str | None = None
    until_mono: float | None = None
    leave_s: float | None = None
    """The same as seconds from when a keeper reads it: on another node, clocks are others."""
    moving_s: float | None = None
    """How much of it ranks have that neither evaluate nor save; the watcher ends them then."""
    grace_s: float = 1.0
    dump: bool = True


def ask_halt(run_dir: Path, request: EndRequest) -> bool:
    """Write `.HALT`; False when one is there already."""
    return create_json(run_dir / HALT_NAME, {"v": 1, **asdict(request)})


def ask_kill(run_dir: Path, request: EndRequest) -> bool:
    """Write `.kill`; False when one is there already."""
    return create_json(run_dir / KILL_NAME, {"v": 1, **asdict(request)})


def is_asked(path: Path) -> bool:
    """Say whether there is a `.HALT` or `.kill` for `load_request`: a link to nowhere is one, too.

    Raises:
        OSError: the disk does not answer.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def load_request(path: Path) -> EndRequest | None:
    """Return the request in `.HALT` or `.kill`, or None when there is no such file.

    Anybody may have made it: what is not of its kind counts as not said, and what is no file (a
    link, a folder) is one made by hand.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    made_at = status.st_mtime
    found = (load_json(path) if stat.S_ISREG(status.st_mode) else None) or {}
    known: dict[str, Any] = {
        row.name: found[row.name]
        for row in fields(EndRequest)
        if row.name in found and _is_of_kind(found[row.name], row.type)
    }
    if "reason" not in known or "ended_by" not in known or _is_foreign(known, found):
        known = {"reason": "halted", "ended_by": "operator", "text": f"{path.name} made by hand"}
    return EndRequest(**{"at": made_at, **known})


def _is_foreign(known: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Say whether a person named a reason or an actor that no record of an end may hold.

    A release of tomorrow may know more of them, and says that the request is one of ours.
    """
    return "v" not in found and not (known["reason"] in REASONS and known["ended_by"] in ACTORS)


def _is_of_kind(value: Any, kind: Any) -> bool:
    """Say whether a value may stand in a field of a type such as `float | None`."""
    if type(value) in (int, float):
        return isinstance(0.0, kind) and abs(value) <= _LARGEST
    return isinstance(value, kind)


def asked_by(run_dir: Path) -> EndRequest | None:
    """Return what ends the run, if anything does: the request that was made first."""
    found = [load_request(run_dir / name) for name in (HALT_NAME, KILL_NAME)]
    requests = [request for request in found if request is not None]
    return min(requests, key=lambda request: request.at, default=None)


def reads_no_halt(run_dir: Path) -> bool:
    """Say whether nothing in a command looks for `.HALT`: it is observed, read, or still silent.

    A program that attaches itself has nothing to save before its first line.
    """
    return (run_dir / READ).exists() or not any(run_dir.glob("heartbeat_rank*.jsonl"))


def until_after(seconds: float) -> float:
    """Return the monotonic time so many seconds from now, within the limit for leaving."""
    return time.monotonic() + min(seconds, HALT_LIMIT_S)
