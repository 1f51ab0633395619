"""What do the nodes of one run tell each other? Small files in the directory that they share.

`.meet_node{K}.json` says that node K came, once for each attempt; `.met.json`, which node 0 writes
when all are there, repeats every node's nonce: who reads its own there shares one directory with
node 0. `exit_node{K}.json` says how node K's part ended. `.gone_node{K}.json` is somebody's proof
that node K has ended without saying so: an engine's, or an operator's. Standard library only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json
from gonogo.supervise.processes import ProcessRef, boot_id, load_stat, pid_namespace

MET_NAME = ".met.json"
SILENT_S = 10.0
"""After so long without a sign a node is silent: its follower gives one every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The keeper of one node, as its node tells it."""

    node: int
    token: int
    nonce: str
    host: str
    boot_id: str
    pid_ns: str
    """Process ids of another namespace mean nothing here."""
    ref: ProcessRef
    address: str
    """Where node 0 can be reached, `host:port`; the others' is for people."""

    def document(self, at: float) -> dict[str, Any]:
        """Return the JSON form; `at` in Unix seconds."""
        return {
            "v": 1,
            "node": self.node,
            "token": self.token,
            "nonce": self.nonce,
            "host": self.host,
            "boot_id": self.boot_id,
            "pid_ns": self.pid_ns,
            "pid": self.ref.pid,
            "start_ticks": self.ref.start_ticks,
            "address": self.address,
            "at": at,
        }


def own_keeping(*, node: int, token: int, address: str) -> Keeping:
    """Return the record of this very process."""
    stat = load_stat(os.getpid())
    ref = ProcessRef(pid=os.getpid(), start_ticks=stat.start_ticks if stat else 0)
    return Keeping(
        node=node,
        token=token,
        nonce=os.urandom(8).hex(),
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        ref=ref,
        address=address,
    )


def meet_path(run_dir: Path, node: int) -> Path:
    """Return where a node says that it came."""
    return run_dir / f".meet_node{node}.json"


def exit_path(run_dir: Path, node: int) -> Path:
    """Return where a node says how its part ended."""
    return run_dir / f"exit_node{node}.json"


def load_end(run_dir: Path, node: int, token: int) -> dict[str, Any] | None:
    """Return how a node's part of an attempt ended; None: it has not said so.

    What the keeper of an older attempt writes late is no end of this one.

    Raises:
        OSError: it cannot be read just now.
    """
    found = load_json(exit_path(run_dir, node)) or {}
    told = found.get("token", token)
    return found if found and isinstance(told, int) and told >= token else None


def alive_path(run_dir: Path, node: int) -> Path:
    """Return what a node's follower writes anew every second."""
    return run_dir / f".alive_node{node}"


def load_sign(run_dir: Path, node: int) -> str:
    """Return the newest sign of a node's follower; another one is another sign of life.

    Raises:
        OSError: it cannot be read just now.
    """
    try:
        return alive_path(run_dir, node).read_text()
    except FileNotFoundError:
        return ""


def watch_path(run_dir: Path, node: int) -> Path:
    """Return where a node's follower tells what it sees."""
    return run_dir / f"watch_node{node}.jsonl"


def gone_path(run_dir: Path, node: int) -> Path:
    """Return where the proof lies that a node has ended."""
    return run_dir / f".gone_node{node}.json"


def load_keeping(run_dir: Path, node: int) -> Keeping | None:
    """Return who keeps a node; None where nobody has said so.

    Raises:
        OSError: it cannot be read just now.
    """
    return keeping_of(load_json(meet_path(run_dir, node)) or {})


def keeping_of(found: Mapping[str, Any]) -> Keeping | None:
    """Return the record in a document; None where it is none."""
    try:
        return Keeping(
            node=int(found["node"]),
            token=int(found["token"]),
            nonce=str(found["nonce"]),
            host=str(found["host"]),
            boot_id=str(found["boot_id"]),
            pid_ns=str(found["pid_ns"]),
            ref=ProcessRef(pid=int(found["pid"]), start_ticks=int(found["start_ticks"])),
            address=str(found["address"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def proof_of_loss(run_dir: Path, node: int) -> str | None:
    """Return why it is certain that a node's part has ended unsaid; None: it is not.

    Silence proves nothing. Proof is somebody's word (`.gone_node{K}.json`: the engine that started
    it, an operator), or this host's own: the node's keeper was a process of this very host, and is
    gone, and its ranks die with it. A part that ends well ends its keeper, too, and may be said to
    be gone: so it is proof only while it has still said nothing of its end.

    Raises:
        OSError: it cannot be looked at just now.
    """
    if exit_path(run_dir, node).exists():
        return None
    proof = _proof(run_dir, node)
    if proof is None or exit_path(run_dir, node).exists():  # written between the two looks
        return None
    return proof


def _proof(run_dir: Path, node: int) -> str | None:
    word = load_json(gone_path(run_dir, node))
    if word is not None:
        return f"{word.get('by') or 'somebody'} says: {word.get('text') or 'it has ended'}"
    keeping = load_keeping(run_dir, node)
    if keeping is None or not _is_of_this_host(keeping) or keeping.ref.is_alive():
        return None
    return f"its keeper, process {keeping.ref.pid}, is gone"


def _is_of_this_host(keeping: Keeping) -> bool:
    """Say whether a keeper is, or was, a process that can be looked for here.

    Machines that go on from one snapshot of a running one have its boot id, but not its name.
    """
    here = os.uname().nodename, boot_id(), pid_namespace()
    return (keeping.host, keeping.boot_id, keeping.pid_ns) == here
