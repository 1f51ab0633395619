"""What happens to the ranks of this node? The follower looks, and writes; it decides nothing.

Every look that finds something new becomes a line of `watch_node{K}.jsonl`, which the watcher on
node 0 reads; `.alive_node{K}` is written anew every second, so that silence can be told from a
quiet run. It takes its part of the rounds of evidence that the watcher asks for. A directory that
cannot be written is weather: what is told later, or never, is unknown to the watcher, and unknown
ends no run. After `exit_node{K}.json` it looks once more and ends. A keeper of its node that stands
stopped is told to go on: nobody else would tell the end of that part.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.contract.node import NodeLine
from gonogo.contract.order import Order
from gonogo.files import append_plain, create_plain
from gonogo.rundir import RunDir
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, is_asked
from gonogo.supervise.evidence.rounds import NodeEvidence
from gonogo.supervise.host.memory import HostMemoryProbe
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import alive_path, exit_path, watch_path
from gonogo.supervise.watcher.looking import INTERVAL_S
from gonogo.supervise.watcher.observing import Observations
from gonogo.supervise.watcher.probes import Prober
from gonogo.supervise.watcher.signs import Signs
from gonogo.supervise.watcher.waking import Waking
from gonogo.supervise.weather import Weather

ALIVE_EVERY_S = 1.0
KEPT_LINES = 1000
"""Of looks that no disk takes; older ones tell nothing any more."""

_log = logging.getLogger("gonogo.supervise.follower")


class Follower:
    """Follows one node's part of a run.

    Args:
        run_dir: the shared run directory.
        order: the order.
        place: the node's.
        signs: how the keeper knows that this follower goes on.
    """

    def __init__(self, run_dir: RunDir, order: Order, place: Place, signs: Signs) -> None:
        self._dir, self._order, self._place, self._signs = run_dir, order, place, signs
        self._weather = Weather(_log)
        self._prober = Prober(run_dir=run_dir, place=place)
        self._evidence = NodeEvidence(run_dir)
        self._observations = Observations([HostMemoryProbe(run_dir, place.ranks)])
        self._waking = Waking(run_dir.path, place, order.watch.watcher.keeper_s)
        self._host = os.uname().nodename
        self._number = 0
        self._alive_at = float("-inf")
        self._unwritten: list[NodeLine] = []

    def follow(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Look until the part has ended and its end has been looked at."""
        ended_path = exit_path(self._dir.path, self._place.node)
        while True:
            now = clock()
            ended = self._weather.tried("the end", ended_path.exists, False)
            self._weather.tried("a look", partial(self.look, now), None)
            if now >= self._alive_at:
                self._weather.tried("the sign", partial(self._be_seen, now), None)
            self._signs.give(now)
            if ended and not self._unwritten:
                return
            self._weather.tried("the keeper", partial(self._waking.look, now), None)
            sleep(max(0.0, now + INTERVAL_S - clock()))

    def look(self, now: float) -> None:
        """Look once, and write what is new.

        Args:
            now: monotonic seconds.

        Raises:
            OSError: it cannot be written just now; it is kept for the next look.
        """
        probes = self._prober.look(now, ending=False)
        if self._is_being_ended():
            self._evidence.stop()
        else:
            self._weather.tried(
                "evidence", partial(self._evidence.tend, now, self._prober.targets()), None
            )
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
            _append(watch_path(self._dir.path, self._place.node), self._unwritten[0])
            self._unwritten.pop(0)

    def _is_being_ended(self) -> bool:
        names = (HALT_NAME, KILL_NAME)
        return any(
            self._weather.tried(name, partial(is_asked, self._dir.path / name), False)
            for name in names
        )

    def _be_seen(self, now: float) -> None:
        """Show that this follower goes on.

        Raises:
            OSError: the disk refuses.
        """
        self._alive_at = now + ALIVE_EVERY_S
        path = alive_path(self._dir.path, self._place.node)
        draft = path.with_name(f"{path.name}.part")
        with create_plain(draft) as stream:
            stream.write(f"{self._order.token} {self._number}\n".encode())
        draft.replace(path)


def _append(path: Path, line: NodeLine) -> None:
    """Add one line to a file: all of it or, where the disk is full, nothing.

    What a follower that was killed left of a line gets a line of its own, which is none.

    Raises:
        OSError: it cannot be written.
    """
    document: dict[str, Any] = {"v": line.v, **line.model_dump(mode="json", exclude_defaults=True)}
    with append_plain(path) as stream:
        start = stream.seek(0, os.SEEK_END)
        torn = start and os.pread(stream.fileno(), 1, start - 1) != b"\n"
        data = (b"\n" if torn else b"") + wire_line(document)
        if stream.write(data) != len(data):
            stream.truncate(start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
