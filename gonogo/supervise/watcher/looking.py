"""What does one look at a run bring? Lines, processes, records and observations: a tick.

A look is made of the files and processes alone; what is found is handed on and remembered nowhere
else. Each look names what came since the one before.
"""

import logging
import time
from dataclasses import dataclass
from functools import partial

from gonogo import __version__
from gonogo.contract.order import Order
from gonogo.contract.tick import FileSeal, Tick, WatchStart
from gonogo.rundir import RunDir
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.exit_record import seal_file
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.watcher.journal import Memory
from gonogo.supervise.watcher.nodes import NodesProber
from gonogo.supervise.watcher.observing import build_observations
from gonogo.supervise.watcher.probes import Prober
from gonogo.supervise.watcher.seals import Seals
from gonogo.supervise.weather import Weather

INTERVAL_S = 0.2
LATE_INTERVALS = 3

_log = logging.getLogger("gonogo.supervise.watcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look: the tick, and the ranks' new lines that belong to it."""

    tick: Tick
    beats: dict[int, list[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the looks of a run have come."""

    number: int
    """Of the next tick."""
    offsets: dict[int, int]
    """Rank → bytes of its heartbeat file that were read."""
    files: dict[str, FileSeal]
    """Records that ticks have sealed."""


class Looking:
    """Looks at one run.

    Args:
        run_dir: the run's directory.
        order: its order.
        memory: what a watcher before this one recorded.
        evidence: the rounds that are taken beside the looks.
        now: monotonic seconds.

    Raises:
        OSError: which order it is cannot be read just now: another watcher begins in a moment.
    """

    def __init__(
        self, run_dir: RunDir, order: Order, memory: Memory, evidence: Evidence, now: float
    ) -> None:
        self._dir = run_dir
        self._weather, self._went = Weather(_log), False
        self._evidence, self._tails = evidence, memory.tails
        self.processes: Prober | NodesProber
        """Who knows of the ranks' processes."""
        if order.nodes > 1:
            self.processes = NodesProber(run_dir, order, now)
        else:
            self.processes = Prober(run_dir=run_dir, place=Place.whole(order.document()))
        self._seals = Seals(run_dir, order.world_size, memory.files, order.nodes)
        self._observations = build_observations(run_dir, order)
        observed = memory.state.view.observed
        self._observations.resume({kind: row.payload for kind, row in observed.items()})
        self._start: WatchStart | None = WatchStart(
            run=order.run,
            attempt=order.attempt,
            order_sha256=str(seal_file(run_dir.order)["sha256"]),
            version=__version__,
        )
        self._number = memory.ticks
        self._due = now if memory.mono is None else memory.mono + INTERVAL_S

    def look(self, now: float, *, ending: bool, last: bool = False) -> Look | None:
        """Look once; None when all have left and nothing is owed.

        Args:
            now: monotonic seconds.
            ending: whether the run has been asked to end.
            last: whether this look is to close the watch, by sealing exit.json.
        """
        late_s = max(0.0, now - self._due)
        probes = self.processes.look(now, ending=ending)
        beats = self._tails.read()
        none: dict[str, FileSeal] = {}
        files = self._weather.tried("records", partial(self._seals.take, last=last), none)
        self._went = self._went or self._weather.tried(".GO", self._dir.go.exists, False)
        left = ending and not beats and not files and self.processes.all_gone()
        observed = self._observations.take(now, only_owed=left)
        if left and not observed:
            return None
        self._due = now + INTERVAL_S
        tick = Tick(
            n=self._number,
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
        self._number += 1
        return Look(tick=tick, beats=beats)

    @property
    def closed(self) -> bool:
        """Whether a tick has sealed exit.json."""
        return self._seals.closed

    def owes(self) -> bool:
        """Say whether a later look will tell what was there when the run ended."""
        return self._observations.owes()

    def note_recorded(self) -> None:
        """Take note that a tick is recorded: the first of them has told who watches."""
        self._start = None

    def note_unrecorded(self, tick: Tick) -> None:
        """Take note that a tick could not be recorded: its seals are owed again."""
        self._seals.forget(tick.files)

    def progress(self) -> Progress | None:
        """Return how far the looks have come; None before a tick of this watcher is recorded."""
        if self._start is not None:
            return None
        offsets, files = dict(self._tails.offsets), self._seals.known
        return Progress(number=self._number, offsets=offsets, files=files)
