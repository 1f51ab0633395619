"""What does the watcher see besides lines and processes? One payload a kind, for the tick.

A source is one probe with a cadence of its own (`devices`, `disk`, `host_memory`, …). What it sees
goes into `Tick.observations` under its kind and is recorded there, so detectors, replay and the
control plane get a new probe without any new plumbing.

Guarantees: a source is asked no more often than its cadence says; one that fails (OSError) is
counted, told once until it answers again, and brings nothing: its kind is then unknown, which never
passes and never halts. Not covered: a look that hangs. `look` runs in the watcher's one thread, so
whatever may block has to be done by another process, whose file the source reads.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from gonogo.contract.order import Order
from gonogo.rundir import RunDir
from gonogo.supervise.devices.samples import DeviceLines
from gonogo.supervise.host.checkpoints import Checkpoints
from gonogo.supervise.host.disk import Disk
from gonogo.supervise.host.measured_peak import MeasuredPeak
from gonogo.supervise.host.memory import HostMemoryProbe
from gonogo.supervise.host.processors import HostCpuProbe

_log = logging.getLogger(__name__)


class Source(Protocol):
    """One probe of the watcher."""

    kind: str
    """Key of its payload in `Tick.observations`."""
    every_s: float
    """Least time between two looks, in seconds."""

    def look(self, now: float) -> Any | None:
        """Return what there is to see, as plain JSON values; None when there is nothing new.

        Args:
            now: monotonic seconds.

        Raises:
            OSError: it cannot be seen just now.
        """

    def resume(self, payload: Any) -> None:
        """Take note of the last payload that a watcher before this one recorded."""


@runtime_checkable
class Owing(Source, Protocol):
    """A probe that may still have something to tell when the run has ended."""

    def owes(self) -> bool:
        """Say whether a later look will tell something that was there before it."""


def build_observations(run_dir: RunDir, order: Order) -> "Observations":
    """Return the sources of one run's watcher: a new probe is one row here."""
    sources: list[Source] = [
        DeviceLines(run_dir),
        Disk(run_dir.path),
        Checkpoints(run_dir),
        MeasuredPeak(run_dir, order.nodes),
    ]
    if order.nodes == 1:  # else each node's follower tells of its own memory
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
        self._failing: set[str] = set()
        self.failures: Counter[str] = Counter()
        """Kind → looks that failed so far."""

    def owes(self) -> bool:
        """Say whether a source still has to tell what was there before the run ended."""
        return any(isinstance(source, Owing) and source.owes() for source in self._sources)

    def take(self, now: float, *, only_owed: bool = False) -> dict[str, Any]:
        """Return kind → payload of the sources that saw something new.

        Args:
            now: monotonic seconds.
            only_owed: ask only those that may owe something.
        """
        seen: dict[str, Any] = {}
        for source in self._sources:
            if now < self._due[source.kind] or (only_owed and not isinstance(source, Owing)):
                continue
            self._due[source.kind] = now + source.every_s
            payload = self._look(source, now)
            if payload is not None:
                seen[source.kind] = payload
        return seen

    def resume(self, payloads: Mapping[str, Any]) -> None:
        """Go on after a watcher that recorded these payloads last (kind → payload)."""
        for source in self._sources:
            if source.kind in payloads:
                source.resume(payloads[source.kind])

    def _look(self, source: Source, now: float) -> Any | None:
        try:
            payload = source.look(now)
        except OSError as error:
            self.failures[source.kind] += 1
            if source.kind not in self._failing:
                _log.warning("%s: %s", source.kind, error, extra={"action": "unobserved"})
            self._failing.add(source.kind)
            return None
        self._failing.discard(source.kind)
        return payload
