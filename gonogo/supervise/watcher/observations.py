"""Observations besides lines and processes: devices, disk, memory, checkpoints, one payload a kind.

Payloads go into `Tick.observations`. A source that fails (OSError) brings nothing, and its kind is
unknown, which never passes and never halts. `look` runs in the watcher's one thread, so a source
that may block reads the file of another process.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

from gonogo.contract.errors import Corrupt
from gonogo.contract.observation import PreflightPeak
from gonogo.contract.order import Order
from gonogo.contract.records import Preflight
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.devices.sampler import DeviceLines
from gonogo.supervise.host.checkpoints import Checkpoints
from gonogo.supervise.host.usage import Disk, HostCpuProbe, HostMemoryProbe
from gonogo.supervise.transient_errors import TransientErrors

_log = logging.getLogger(__name__)


class Source(Protocol):
    """One probe of the watcher."""

    kind: str
    """Key of its payload in `Tick.observations`."""
    every_s: float
    """Least time between two looks, in seconds."""

    def look(self, now: float) -> Any | None:
        """Return the payload as plain JSON values; None when there is nothing new.

        Raises:
            OSError: it cannot be read just now.
        """

    def resume(self, payload: Any) -> None:
        """Take the last payload that the watcher before this one recorded."""


@runtime_checkable
class Owing(Source, Protocol):
    """A probe that may bring something after the run has ended."""

    def owes(self) -> bool:
        """Return whether a later look will bring something that is there already."""


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
    """Asks every source when it is due, in their order.

    Args:
        sources: one for each kind.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._due = {source.kind: float("-inf") for source in self._sources}
        self._transient = TransientErrors(_log)

    def owes(self) -> bool:
        """Return whether a source still has to bring what was there before the end."""
        return any(isinstance(source, Owing) and source.owes() for source in self._sources)

    def take(self, now: float, *, only_owed: bool = False) -> dict[str, Any]:
        """Return kind → payload of the sources that saw something new.

        Args:
            only_owed: ask only sources that may still miss something.
        """
        seen: dict[str, Any] = {}
        for source in self._sources:
            if now < self._due[source.kind] or (only_owed and not isinstance(source, Owing)):
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
        """Return the peak as soon as every node's is there.

        Raises:
            OSError: a file exists and cannot be read.
        """
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
