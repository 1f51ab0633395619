"""One look at a run: new lines, processes, records and observations, made into a tick."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gonogo import __version__
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal, Tick, WatchStart
from gonogo.files import read_small
from gonogo.rundir import RunDir
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.exit_record import seal_file
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.journal import Journal
from gonogo.supervise.watcher.node_probes import NodesProber
from gonogo.supervise.watcher.observations import build_observations
from gonogo.supervise.watcher.rank_probes import Prober, Processes

INTERVAL_S = 0.2
LATE_INTERVALS = 3
EXIT = "exit.json"

_log = logging.getLogger("gonogo.supervise.watcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The tick, and the ranks' new lines that belong to it."""

    tick: Tick
    beats: dict[int, list[bytes]]


class Looking:
    """Looks at one run.

    Args:
        journal: what the watcher before this one recorded.

    Raises:
        OSError: the order cannot be read just now.
    """

    def __init__(
        self, run_dir: RunDir, order: Order, journal: Journal, evidence: Evidence, now: float
    ) -> None:
        self._dir, self._memory = run_dir, journal.memory
        self._transient, self._went = TransientErrors(_log), False
        self._evidence, self._tails = evidence, journal.tails
        self.processes: Processes
        if order.nodes > 1:
            self.processes = NodesProber(run_dir, order, now)
        else:
            self.processes = Prober(run_dir, Place.of(order.document()))
        self._seals = Seals(run_dir, order.world_size, self._memory.files, order.nodes)
        self._observations = build_observations(run_dir, order)
        observed = journal.state.view.observed
        self._observations.resume({kind: row.payload for kind, row in observed.items()})
        self._start: WatchStart | None = WatchStart(
            run=order.run,
            attempt=order.attempt,
            order_sha256=str(seal_file(run_dir.order)["sha256"]),
            version=__version__,
        )
        mono = self._memory.mono
        self._due = now if mono is None else mono + INTERVAL_S

    def look(self, now: float, *, ending: bool, last: bool = False) -> Look | None:
        """Look once; None when all ranks have left and nothing is to come.

        Args:
            ending: whether the run has been asked to end.
            last: whether this look closes the watch by sealing exit.json.
        """
        late_s = max(0.0, now - self._due)
        probes = self.processes.look(now, ending=ending)
        beats = self._tails.read()
        none: dict[str, FileSeal] = {}
        files = self._transient.tried("records", partial(self._seals.take, last=last), none)
        self._went = self._went or self._transient.tried(".GO", self._dir.go.exists, False)
        left = ending and not beats and not files and self.processes.all_gone()
        observed = self._observations.take(now, only_owed=left)
        if left and not observed:
            return None
        self._due = now + INTERVAL_S
        tick = Tick(
            n=self._memory.number,
            mono=now,
            ts=time.time(),
            interval_s=INTERVAL_S,
            late_s=late_s if late_s > LATE_INTERVALS * INTERVAL_S else 0.0,
            upto={str(rank): self._tails.offsets[rank] for rank in beats},
            ranks=probes.ranks,
            agent=probes.agent,
            stacks=self._evidence.take_probes() + probes.stacks,
            nodes=probes.nodes,
            go=self._went,
            observations=observed | probes.observations | self._evidence.take_observations(),
            start=self._start,
            files=files,
        )
        self._memory.number += 1
        return Look(tick=tick, beats=beats)

    @property
    def closed(self) -> bool:
        """Whether a tick has sealed exit.json."""
        return self._seals.closed

    def owes(self) -> bool:
        """Return whether a later look will bring something that was there at the end."""
        return self._observations.owes()

    def note_recorded(self) -> None:
        """Note that a tick is recorded: the first one names the watched run."""
        self._start = None

    def note_unrecorded(self, tick: Tick) -> None:
        """Note that a tick could not be recorded: its seals are due again."""
        self._seals.forget(tick.files)


class Seals:
    """The seals of one run directory's small records (size and SHA-256), which ticks hold.

    A record is sealed when it is first seen whole. While the run lives, model.json and exit stamps
    are sealed again when they change, since a process may restart in place. Any other change is
    behind the watcher's back, and the first seal stays. The last tick of all seals exit.json.

    Args:
        known: path → seal that recorded ticks hold; new ones are added to it.
    """

    def __init__(
        self, run_dir: RunDir, world_size: int, known: dict[str, FileSeal], nodes: int = 1
    ) -> None:
        again = [run_dir.model, *(run_dir.rank_exit(rank) for rank in range(world_size))]
        once = [run_dir.order, *(run_dir.preflight_of(node) for node in range(nodes))]
        # exit.json first: records written before it are there by then.
        self._paths = {
            str(path.relative_to(run_dir.path)): path for path in (run_dir.exit, *once, *again)
        }
        self._again = {str(path.relative_to(run_dir.path)) for path in again}
        self._known = known
        self._looked: dict[str, tuple[int, int, int]] = {}

    @property
    def closed(self) -> bool:
        """Whether the end has been sealed."""
        return EXIT in self._known

    def forget(self, names: Iterable[str]) -> None:
        """Seal these again: the tick that held them could not be recorded."""
        for name in names:
            self._known.pop(name, None)
            self._looked.pop(name, None)

    def take(self, *, last: bool) -> dict[str, FileSeal]:
        """Return the new seals, that of exit.json only for the `last` tick."""
        if self.closed:
            return {}
        fresh = {}
        for name, path in self._paths.items():
            if (name in self._known and name not in self._again) or (name == EXIT and not last):
                continue
            seal = self._look(name, path)
            if seal is not None and seal != self._known.get(name):
                fresh[name] = self._known[name] = seal
        return fresh

    def _look(self, name: str, path: Path) -> FileSeal | None:
        """Return the seal of a record that has changed since the last look and is JSON."""
        try:
            stat = os.stat(path)
            signature = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if signature == self._looked.get(name):
                return None
            content = read_small(path)
            json.loads(content)
        except (OSError, ValueError, RecursionError):
            return None
        self._looked[name] = signature
        return FileSeal(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
