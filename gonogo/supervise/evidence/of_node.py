"""What does a node's follower take for a round of evidence? Stacks and state of the ranks there.

The watcher on node 0 asks by a file in the round's folder (`of_rank.save_asked`); each follower
writes its ranks' files beside it, in threads, as the watcher does for its own host. A round that
was taken already, or that asks while the run is being ended, is left alone: a process that is
being read takes no signal.
"""

import logging
import queue
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gonogo.contract.tick import StackProbe
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json
from gonogo.supervise.evidence.of_rank import (
    ASKED_NAME,
    Target,
    names_of_node,
    read_proc,
    read_target,
    start_collector,
)
from gonogo.supervise.evidence.stacks import Readers, find_py_spy

LOOK_EVERY_S = 0.4

_log = logging.getLogger(__name__)


class NodeEvidence:
    """The rounds of one node; used from the follower's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._readers, self._py_spy = Readers(), find_py_spy()
        self._probes: queue.SimpleQueue[StackProbe] = queue.SimpleQueue()
        self._seen: set[str] = set()
        self._look_at = float("-inf")

    def tend(self, now: float, targets: Mapping[int, Target]) -> None:
        """Take the rounds that were asked for since the last call.

        Args:
            now: monotonic seconds.
            targets: the ranks of this node.

        Raises:
            OSError: the folder cannot be read just now.
        """
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        for path in sorted(self._dir.evidence.glob(f"[0-9]*_*/{ASKED_NAME}")):
            if path.parent.name not in self._seen:
                self._seen.add(path.parent.name)
                self._take(path.parent, load_json(path) or {}, targets)

    def stop(self) -> None:
        """End all readings: the ranks are about to be ended."""
        self._readers.stop()

    def take_probes(self) -> list[StackProbe]:
        """Return the stack readings that came in since the last call."""
        found = []
        while not self._probes.empty():
            found.append(self._probes.get_nowait())
        return found

    def _take(
        self, folder: Path, asked: Mapping[str, object], targets: Mapping[int, Target]
    ) -> None:
        number, native = asked.get("number"), asked.get("native") is True
        if not isinstance(number, int):
            return
        for rank, target in targets.items():
            stacks, proc = (folder / name for name in names_of_node(rank))
            if target.pid is None or stacks.exists():
                continue
            read = partial(read_target, self._readers, self._py_spy, self._probes.put)
            start_collector(stacks, partial(read, number, target, native))
            start_collector(proc, partial(read_proc, target.pid))
