"""Files by which the nodes of a run learn of each other, in the shared run directory. Stdlib only.

- `.meet_node{K}.json`: node K has come for this attempt.
- `.met.json`: node 0 has seen all nodes; the launchers' address.
- `.alive_node{K}`: rewritten every second by node K's follower.
- `watch_node{K}.jsonl`: what node K's follower sees.
- `exit_node{K}.json`: how node K's part ended.
- `.gone_node{K}.json`: proof by an engine or an operator that node K ended without `exit_node`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json
from gonogo.supervise.processes import ProcessRef, boot_id, load_stat, pid_namespace

MET_NAME = ".met.json"
_SIMPLE = ("node", "token", "host", "boot_id", "pid_ns", "address")
SILENT_S = 10.0
"""A node is silent after so long without a sign of its follower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The keeper of one node, as `.meet_node{K}.json` names it."""

    node: int
    token: int
    host: str
    boot_id: str
    pid_ns: str
    """The namespace of its process id."""
    ref: ProcessRef
    address: str
    """`host:port` at which node 0 can be reached."""

    def document(self, at: float) -> dict[str, Any]:
        """Return the JSON form; `at` in Unix seconds."""
        simple = {name: getattr(self, name) for name in _SIMPLE}
        ref = {"pid": self.ref.pid, "start_ticks": self.ref.start_ticks}
        return {"v": 1, **simple, **ref, "at": at}


def own_keeping(*, node: int, token: int, address: str) -> Keeping:
    """Return the record of this process."""
    stat = load_stat(os.getpid())
    return Keeping(
        node=node,
        token=token,
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        ref=ProcessRef(pid=os.getpid(), start_ticks=stat.start_ticks if stat else 0),
        address=address,
    )


def meet_path(run_dir: Path, node: int) -> Path:
    """Return the path of `.meet_node{K}.json`."""
    return run_dir / f".meet_node{node}.json"


def exit_path(run_dir: Path, node: int) -> Path:
    """Return the path of `exit_node{K}.json`."""
    return run_dir / f"exit_node{node}.json"


def alive_path(run_dir: Path, node: int) -> Path:
    """Return the path of `.alive_node{K}`."""
    return run_dir / f".alive_node{node}"


def watch_path(run_dir: Path, node: int) -> Path:
    """Return the path of `watch_node{K}.jsonl`."""
    return run_dir / f"watch_node{node}.jsonl"


def gone_path(run_dir: Path, node: int) -> Path:
    """Return the path of `.gone_node{K}.json`."""
    return run_dir / f".gone_node{node}.json"


def load_end(run_dir: Path, node: int, token: int) -> dict[str, Any] | None:
    """Return how a node's part of an attempt ended; None if it has not reported that."""
    found = load_json(exit_path(run_dir, node)) or {}
    written = found.get("token", token)
    return found if found and isinstance(written, int) and written >= token else None


def load_sign(run_dir: Path, node: int) -> str:
    """Return the newest sign of a node's follower; a changed one is a sign of life."""
    try:
        return alive_path(run_dir, node).read_text()
    except FileNotFoundError:
        return ""


def load_keeping(run_dir: Path, node: int) -> Keeping | None:
    """Return the keeper of a node; None if it has not come."""
    return keeping_of(load_json(meet_path(run_dir, node)) or {})


def keeping_of(found: Mapping[str, Any]) -> Keeping | None:
    """Return the record in a document; None if it is not one."""
    try:
        return Keeping(
            node=int(found["node"]),
            token=int(found["token"]),
            host=str(found["host"]),
            boot_id=str(found["boot_id"]),
            pid_ns=str(found["pid_ns"]),
            address=str(found["address"]),
            ref=ProcessRef(pid=int(found["pid"]), start_ticks=int(found["start_ticks"])),
        )
    except (KeyError, TypeError, ValueError):
        return None


def proof_of_loss(run_dir: Path, node: int) -> str | None:
    """Return why it is certain that a node's part ended without a report; None if it is not.

    Silence proves nothing. Proof is `.gone_node{K}.json`, or that the node's keeper was a process
    of this host and is dead: its ranks die with it.
    """
    ended = exit_path(run_dir, node)
    if ended.exists():
        return None
    proof = _proof(run_dir, node)
    return None if ended.exists() else proof  # it may have been written in between


def _proof(run_dir: Path, node: int) -> str | None:
    word = load_json(gone_path(run_dir, node))
    if word is not None:
        return f"{word.get('by') or 'somebody'} says: {word.get('text') or 'it has ended'}"
    keeping = load_keeping(run_dir, node)
    if keeping is None or keeping.ref.is_alive():
        return None
    # Virtual machines resumed from one snapshot share a boot id, but not a host name.
    here = os.uname().nodename, boot_id(), pid_namespace()
    if (keeping.host, keeping.boot_id, keeping.pid_ns) != here:
        return None
    return f"its keeper, process {keeping.ref.pid}, is gone"
