"""One look at a run: new lines, processes, records and observations, made into a tick."""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gonogo import __version__
from gonogo.contract.errors import Corrupt
from gonogo.contract.observation import PreflightPeak
from gonogo.contract.order import Order
from gonogo.contract.records import FileSeal, Preflight, Tick, WatchStart
from gonogo.files import read_small
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.devices.sampler import DeviceLines
from gonogo.supervise.evidence.rounds import Evidence
from gonogo.supervise.exit_record import seal_file
from gonogo.supervise.host.checkpoints import Checkpoints
from gonogo.supervise.host.usage import Disk, HostCpuProbe, HostMemoryProbe
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.journal import Journal
from gonogo.supervise.watcher.rank_probes import NodesProber, Prober, Processes

_log = logging.getLogger("gonogo.supervise.watcher")


class Source(Protocol):
    """One probe of the watcher. After an OSError its kind is unknown for now."""

    kind: str  # Key of its payload in `Tick.observations`.
    every_s: float  # Least time between two looks, in seconds.

    def look(self, now: float) -> Any | None:
        """Return the payload as plain JSON values; None when there is nothing new."""

    def resume(self, payload: Any) -> None:
        """Take the last payload that the watcher before this one recorded."""


def build_observations(run_dir: RunDir, order: Order) -> "Observations":
    """Return the sources of one run's watcher."""
    sources: list[Source] = [
        DeviceLines(run_dir),
        Disk(run_dir.path),
        Checkpoints(run_dir),
        MeasuredPeak(run_dir, order.nodes),
    ]
    if order.nodes == 1:  # else each node's follower reports its own memory
        sources.append(HostMemoryProbe(run_dir, range(order.world_size)))
        sources.append(HostCpuProbe(run_dir, range(order.world_size)))
    return Observations(sources)


class Observations:
    """Asks every source when it is due, in their order."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._due = {source.kind: float("-inf") for source in self._sources}
        self._transient = TransientErrors(_log)

    def owes(self) -> bool:
        """Return whether a source still has to bring what was there at the end; it is due now."""
        owing = [row.kind for row in self._sources if isinstance(row, Checkpoints) and row.owes()]
        self._due |= dict.fromkeys(owing, float("-inf"))
        return bool(owing)

    def take(self, now: float, *, only_owed: bool = False) -> dict[str, Any]:
        """Return kind → payload of the sources that saw something new."""
        seen: dict[str, Any] = {}
        for source in self._sources:
            if now < self._due[source.kind] or (only_owed and not isinstance(source, Checkpoints)):
                continue
            self._due[source.kind] = now + source.every_s
            payload = self._transient.tried(source.kind, partial(source.look, now), None)
            if payload is not None:
                seen[source.kind] = payload
        return seen

    def resume(self, payloads: Mapping[str, Any]) -> None:
        """Continue after the watcher that recorded these payloads (kind → payload)."""
        for source in self._sources:
            if source.kind in payloads:
                source.resume(payloads[source.kind])


class MeasuredPeak:
    """The source `preflight_peak`: the matrix-product peak that the preflight measured.

    It is reported once, as the sum over all nodes.
    """

    kind = "preflight_peak"
    every_s = 5.0

    def __init__(self, run_dir: RunDir, nodes: int = 1) -> None:
        self._dir, self._nodes = run_dir, nodes
        self._is_done = False

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the peak as soon as every node's is there."""
        if self._is_done:
            return None
        try:
            found = [
                load_record(self._dir.preflight_of(node), Preflight) for node in range(self._nodes)
            ]
        except Corrupt:
            self._is_done = True
            return None
        records = [record for record in found if record is not None]
        if len(records) < self._nodes:
            return None
        self._is_done = True
        peaks = [record.peak_flops or 0.0 for record in records]
        if not all(math.isfinite(peak) and peak > 0 for peak in peaks):
            return None
        kinds = {record.peak_of for record in records}
        return PreflightPeak(
            flops=math.fsum(peaks), of=kinds.pop() if len(kinds) == 1 else None
        ).wire()

    def resume(self, payload: Any) -> None:
        """Report it no second time."""
        self._is_done = True


INTERVAL_S = 0.2
LATE_INTERVALS = 3
EXIT = "exit.json"


class Looking:
    """Looks at one run."""

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

    def look(
        self, now: float, *, ending: bool, last: bool = False
    ) -> tuple[Tick, dict[int, list[bytes]]] | None:
        """Return the tick and the new lines; None: all ranks have left, nothing is to come."""
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
        self._start = None
        return tick, beats

    @property
    def closed(self) -> bool:
        """Whether a tick has sealed exit.json."""
        return self._seals.closed

    def owes(self) -> bool:
        """Return whether a later look will bring something that was there at the end."""
        return self._observations.owes()


class Seals:
    """The seals of one run directory's small records (size and SHA-256), which ticks hold.

    A record is sealed when it is first seen whole. While the run lives, model.json and exit stamps
    are sealed again when they change, since a process may restart in place. Any other change is
    behind the watcher's back, and the first seal stays. The last tick of all seals exit.json.
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
