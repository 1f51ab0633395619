"""One run on several nodes for tests: a keeper for each, which share a directory and this host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gonogo.contract.records import ExitRecord, NodeExit, NodeState, Tick
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import load_all_lines, load_record
from gonogo.supervise.process_records import EXIT_NAME
from tests.supervise.runs import ALLOWED, KEEPER, ROOT, SupervisedRun, build_test_order, wait_until


@dataclass(slots=True)
class ClusterRun(SupervisedRun):
    """One run directory and the keepers of its nodes."""

    keepers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, *options: str) -> ClusterRun:
        """Write the order and start every node's keeper."""
        self.path.mkdir(parents=True)
        self.dir.order.write_text(json.dumps(self.order.document()))
        for node in range(self.order.nodes):
            self.start_node(node, *options)
        return self

    def start_node(self, node: int, *options: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GONOGO_", "NSA_"))}
        where = ("--node", str(node), "--rendezvous", self.environ["rendezvous"])
        with (self.path / f"keeper_log{node}.txt").open("ab") as log:
            self.keepers[node] = subprocess.Popen(
                (sys.executable, "-m", KEEPER, str(self.path), *where, *options, *ALLOWED),
                cwd=ROOT,
                env=kept,
                stdout=log,
                stderr=log,
            )
        self.keeper = self.keepers.get(0)

    def wait_for_all(self) -> ExitRecord:
        """Return exit.json, after all keepers have ended."""
        for node, keeper in self.keepers.items():
            wait_until(lambda keeper=keeper: keeper.poll() is not None, f"keeper {node}'s end")
        return self.record()

    def record(self) -> ExitRecord:
        """Return exit.json."""
        record = load_record(self.dir.exit, ExitRecord)
        assert record is not None, "".join(
            path.read_text() for path in sorted(self.path.glob("keeper_log*.txt"))
        )
        return record

    def part(self, node: int) -> NodeExit:
        """Return exit_node{K}.json."""
        found = load_record(self.path / EXIT_NAME.format(node), NodeExit)
        assert found is not None
        return found

    def node_states(self) -> list[tuple[int, NodeState]]:
        """Return what the recorded ticks say of the nodes, in their order."""
        ticks = [Tick.model_validate_json(line) for line in load_all_lines(self.dir.watch)]
        return [(row.node, row.state) for tick in ticks for row in tick.nodes]

    def clean_up(self) -> None:
        for keeper in self.keepers.values():
            if keeper.poll() is None:
                keeper.kill()
                keeper.wait()
        super(ClusterRun, self).clean_up()


NewCluster = Callable[..., ClusterRun]


@contextmanager
def starting_cluster(folder: Path) -> Iterator[NewCluster]:
    """Yield `new_cluster(*keeper options, **order parts)` → a run of two nodes that was started."""
    started: list[ClusterRun] = []

    def start(*options: str, begin: bool = True, **changes: Any) -> ClusterRun:
        path = folder / new_id(Kind.RUN)
        order = build_test_order(path.name, **{"nodes": 2, **changes})
        run = ClusterRun(path=path, order=order, environ={"rendezvous": f"127.0.0.1:{free_port()}"})
        started.append(run)
        return run.begin(*options) if begin else run

    yield start
    for run in started:
        run.clean_up()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
