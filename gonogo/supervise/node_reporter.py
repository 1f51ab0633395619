"""The follower of one node: it reports the node's ranks to the watcher on node 0.

`python -m gonogo.supervise.node_reporter RUNDIR --node K [--signs FD]` writes a line of
`watch_node{K}.jsonl` for every look that finds something new, and `.alive_node{K}` every second. It
takes its part of the rounds of evidence. It decides
nothing. After `exit_node{K}.json` it looks once more and ends.

Exit codes: 0 the part has ended, and that was reported · 2 no readable order, or no such node.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.order import Order
from gonogo.contract.records import NodeLine
from gonogo.files import append_line, replace_file
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, is_asked
from gonogo.supervise.evidence.rounds import NodeEvidence
from gonogo.supervise.host.usage import HostMemoryProbe
from gonogo.supervise.launch.nodes import NoPlace, Place
from gonogo.supervise.process_records import ALIVE_NAME, EXIT_NAME, WATCH_NAME
from gonogo.supervise.processes import LifeSigns
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.look import INTERVAL_S, Observations
from gonogo.supervise.watcher.rank_probes import Prober
from gonogo.supervise.watcher.watcher import start_watching

ALIVE_EVERY_S = 1.0
KEPT_LINES = 1000  # The most lines that wait for a disk.

_log = logging.getLogger("gonogo.supervise.node_reporter")


class Follower:
    """Follows one node's part of a run."""

    def __init__(self, run_dir: RunDir, order: Order, place: Place, signs: LifeSigns) -> None:
        self._dir, self._order, self._place, self._signs = run_dir, order, place, signs
        self._transient = TransientErrors(_log)
        self._prober = Prober(run_dir, place)
        self._evidence = NodeEvidence(run_dir)
        self._observations = Observations([HostMemoryProbe(run_dir, place.ranks)])
        self._host = os.uname().nodename
        self._number = 0
        self._alive_at = float("-inf")
        self._unwritten: list[NodeLine] = []

    def follow(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Look until the part has ended and its end has been looked at."""
        ended_path = self._dir.path / EXIT_NAME.format(self._place.node)
        while True:
            now = clock()
            ended = self._transient.tried("the end", ended_path.exists, False)
            self._transient.tried("a look", partial(self.look, now), None)
            if now >= self._alive_at:
                self._transient.tried("the sign", partial(self._be_seen, now), None)
            self._signs.give(now)
            if ended and not self._unwritten:
                return
            sleep(max(0.0, now + INTERVAL_S - clock()))

    def look(self, now: float) -> None:
        """Look once, and write what is new."""
        probes = self._prober.look(now, ending=False)
        if self._is_being_ended():
            self._evidence.stop()
        else:
            work = partial(self._evidence.tend, self._prober.targets())
            self._transient.tried("evidence", work, None)
        line = NodeLine(
            node=self._place.node,
            token=self._order.token,
            host=self._host,
            n=self._number,
            mono=now,
            ts=time.time(),
            ranks=probes.ranks,
            agent=probes.agent,
            stacks=self._evidence.take_probes(),
            observations=self._observations.take(now),
        )
        self._number += 1
        if line.ranks or line.agent or line.stacks or line.observations:
            self._unwritten = [*self._unwritten[-KEPT_LINES:], line]
        while self._unwritten:
            _append(self._dir.path / WATCH_NAME.format(self._place.node), self._unwritten[0])
            self._unwritten.pop(0)

    def _is_being_ended(self) -> bool:
        names = (HALT_NAME, KILL_NAME)
        return any(
            self._transient.tried(name, partial(is_asked, self._dir.path / name), False)
            for name in names
        )

    def _be_seen(self, now: float) -> None:
        self._alive_at = now + ALIVE_EVERY_S
        path = self._dir.path / ALIVE_NAME.format(self._place.node)
        replace_file(path, f"{self._order.token} {self._number}\n".encode(), syncs=False)


def _append(path: Path, line: NodeLine) -> None:
    document: dict[str, Any] = {"v": line.v, **line.model_dump(mode="json", exclude_defaults=True)}
    append_line(path, wire_line(document))


def main(argv: Sequence[str]) -> int:
    """Follow one node's part; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.node_reporter")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, required=True, metavar="K")
    parser.add_argument("--signs", type=int, default=None, metavar="FD")
    asked = parser.parse_args(argv)
    start_watching()
    run_dir = RunDir(asked.run_dir.absolute())
    try:
        order = load_record(run_dir.order, Order)
        if order is None:
            return 2
        place = Place.of(order.document(), asked.node)
    except (GonogoError, NoPlace) as error:
        _log.error("%s", error, extra={"action": "bad_order"})
        return 2
    Follower(run_dir, order, place, LifeSigns(asked.signs)).follow(time.monotonic, time.sleep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
