"""Join the starts of `gonogo run` on several nodes into one run, in a folder that they share.

A launcher (srun, mpirun, a cloud's) starts the same line once on each node. Each node but the first
writes `node{K}.json` with a nonce. Node 0 waits for all of them, makes the run directory with its
order, and writes `begun.json`, which repeats the nonces. A node follows the run that repeats its
own nonce. At the end node 0 writes `.verdict.json` into the run directory.

Guarantees: nothing is started before all nodes have come, no node waits forever, and all end with
the same exit code. Not covered: two starts at once without a launcher that names them.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.cli.output import say
from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.launch.nodes import NODE_LAUNCHERS, NoPlace, read_node
from gonogo.supervise.locks import take_lock
from gonogo.supervise.transient_errors import TransientErrors

VERDICT_NAME = ".verdict.json"
VERDICT_LIMIT_S = 120.0
"""How long node 0 may show nothing new before the others stop waiting for its verdict."""
MOST_NODES = 1024
_POLL_S = 0.2
_SAY_AFTER_S = 10.0
_BEGUN_NAME = "begun.json"
_transient = TransientErrors(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Which part of a joint start this process is."""

    count: int
    """At least 2."""
    node: int
    address: str | None
    """Where the other nodes reach node 0; None: node 0 finds that out."""
    launch: str
    """The same on all nodes of one start."""


def find_nodes(
    asked: str | None,
    node_rank: int | None,
    master_addr: str | None,
    environ: Mapping[str, str],
) -> Nodes | None:
    """Return this process's part of a joint start by options and launcher; None for one node."""
    if asked is None:
        if node_rank is not None or master_addr is not None:
            raise Rejected("--node-rank and --master-addr need --nodes")
        return None
    if asked != "auto" and not (asked.isascii() and asked.isdigit() and int(asked) > 0):
        raise Rejected(f"--nodes: found {asked!r}; expected a number, or auto")
    try:
        told = read_node(environ) if asked == "auto" or node_rank is None else None
    except NoPlace as error:
        raise Rejected(str(error)) from error
    if told is None and node_rank is None and asked != "1":
        known = ", ".join(f"{row.node} ({row.name})" for row in NODE_LAUNCHERS)
        raise Rejected(f"the number of this node is unknown: say --node-rank I; looked for {known}")
    count = int(asked) if asked != "auto" else None if told is None else told.nodes
    if count is None:
        where = "no launcher is found" if told is None else f"{told.launcher.name} sets no number"
        raise Rejected(f"--nodes auto: {where}; say --nodes N")
    if told is not None and told.nodes not in (None, count):
        raise Rejected(f"--nodes {count}: {told.launcher.name} tells of {told.nodes} nodes")
    node = node_rank if node_rank is not None else 0 if told is None else told.node
    if not 0 <= node < count <= MOST_NODES:
        raise Rejected(f"node {node} is none of {count} (of {MOST_NODES} at most)")
    if count == 1:
        return None
    address = master_addr or (None if told is None else told.address)
    named = [told.launcher.name, told.launch] if told is not None else []
    launch = digest([*named, count, address or ""])[:16]
    return Nodes(count=count, node=node, address=address, launch=launch)


class JointStart:
    """One start of a command on several nodes, as one of them sees it."""

    def __init__(
        self, runs: Path, starts: Path, nodes: Nodes, command: Sequence[str], limit_s: float
    ) -> None:
        self._runs, self._folder = runs, starts / nodes.launch
        self._nodes, self._limit_s = nodes, limit_s
        self._command = digest(list(command))

    def lead(self, make_run: Callable[[], str]) -> None:
        """Wait for the other nodes, make the run directory, and let them follow the run."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if take_lock(self._folder / "lead.lock") is None:  # held until this process ends
            raise Rejected(
                f"another start is under way in {self._folder}: give each a folder of its own"
                " (--dir)"
            )
        for path in self._folder.glob("*.json"):
            path.unlink(missing_ok=True)
        others: dict[int, dict[str, Any]] = {}

        def have_come() -> bool:
            for node in range(1, self._nodes.count):
                row = load_json(self._folder / f"node{node}.json")
                others.update({} if row is None else {node: row})
            return len(others) == self._nodes.count - 1

        def missing() -> str:
            absent = [str(node) for node in range(1, self._nodes.count) if node not in others]
            return (
                f"nothing of node {', '.join(absent)} in {self._folder} within {self._limit_s:g} s:"
                " was gonogo run started there, and does that node see the same folder?"
            )

        self._wait(have_come, missing)
        nonces = {str(node): row.get("nonce") for node, row in others.items()}
        wrong = [
            f"{node} ({row.get('host')})"
            for node, row in others.items()
            if row.get("command") != self._command
        ]
        if wrong:
            text = (
                f"node {', '.join(wrong)} was started with another command: leave --node-rank and"
                " --master-addr out of it, gonogo sets PET_… for torchrun"
            )
            self._save(_BEGUN_NAME, {"refused": text, "nonces": nonces})
            raise Rejected(text)
        self._save(_BEGUN_NAME, {"run": make_run(), "nonces": nonces})

    def follow(self) -> str:
        """Return the run that node 0 has begun with this node."""
        node, host = self._nodes.node, os.uname().nodename
        own = {"nonce": os.urandom(8).hex(), "host": host, "command": self._command}
        name, found = f"node{node}.json", dict[str, Any]()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

        def is_answered() -> bool:
            if (load_json(self._folder / name) or {}).get("nonce") != own["nonce"]:
                self._save(name, own)  # also where node 0 came later, and removed it
            begun = load_json(self._folder / _BEGUN_NAME) or {}
            if begun.get("nonces", {}).get(str(node)) != own["nonce"]:
                return False
            order = self._runs / str(begun.get("run")) / "order.json"
            if "refused" not in begun and not order.exists():
                return False  # a network file system shows it later
            found.update(begun)
            return True

        def unanswered() -> str:
            return (
                f"node {node} ({host}) was not answered in {self._folder} within"
                f" {self._limit_s:g} s: was gonogo run started on node 0, and does node 0 see the"
                " same folder (GONOGO_HOME, --dir)?"
            )

        self._wait(is_answered, unanswered)
        if "refused" in found:
            raise Rejected(str(found["refused"]))
        return str(found["run"])

    def _save(self, name: str, document: Mapping[str, Any]) -> None:
        save_json(self._folder / name, {"v": 1, **document})

    def _wait(self, holds: Callable[[], bool], missing: Callable[[], str]) -> None:
        began, said = time.monotonic(), False
        while not _transient.tried("the other nodes", holds, False):
            age_s = time.monotonic() - began
            if age_s >= self._limit_s:
                raise Unavailable(missing())
            if age_s >= _SAY_AFTER_S and not said:
                said = True
                say(f"waiting for the other nodes: {missing()}")
            time.sleep(_POLL_S)


def save_verdict(run_dir: RunDir, code: int) -> None:
    """Write the exit code with which the other nodes end."""
    save_json(run_dir.path / VERDICT_NAME, {"v": 1, "exit": code})


def wait_for_verdict(run_dir: RunDir, limit_s: float = VERDICT_LIMIT_S) -> int:
    """Return the exit code of node 0's verdict; while its watcher writes, there is more to come."""
    seen, since = -1, time.monotonic()
    look = partial(load_json, run_dir.path / VERDICT_NAME)
    while (found := _transient.tried("the verdict", look, None)) is None:
        size = _transient.tried("the watch", partial(_size_of, run_dir.watch), seen)
        if size != seen:
            seen, since = size, time.monotonic()
        if time.monotonic() - since >= limit_s:
            raise Unavailable(
                f"node 0 has written no verdict in {run_dir.path} for {limit_s:g} s;"
                f" gonogo judge {run_dir.path} derives it"
            )
        time.sleep(_POLL_S)
    return int(found["exit"])


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
