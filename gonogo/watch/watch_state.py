"""What does a fold know between two ticks, and which detectors does it ask?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.finding import Finding
from gonogo.contract.tick import Tick
from gonogo.timeline.rank import RankStream
from gonogo.watch.detector import EVERY_LINE, Detector
from gonogo.watch.view import Run, View


@dataclass(slots=True, kw_only=True)
class WatchState:
    """All that the fold knows; opaque to everyone else."""

    view: View
    detectors: tuple[Detector[Any], ...]
    own: dict[str, Any]
    """Detector → its own state."""
    said: set[str] = field(default_factory=set)
    """Keys of all findings so far."""
    latched: Finding | None = None
    """The first halt finding."""
    failed: dict[str, str] = field(default_factory=dict)
    """Detector of another package that watches no more → why."""
    _by_msg: dict[str, tuple[Detector[Any], ...]] = field(default_factory=dict)
    _stepping: tuple[Detector[Any], ...] = ()
    _ticking: tuple[Detector[Any], ...] = ()
    _clocked: tuple[Detector[Any], ...] = ()

    def __post_init__(self) -> None:
        self.leave_out({})

    def leave_out(self, failed: Mapping[str, str]) -> None:
        """Ask these detectors nothing more."""
        self.failed |= failed
        looking = self.looking()
        self._by_msg = {}
        self._stepping = tuple(row for row in looking if row.steps)
        self._ticking = tuple(row for row in looking if row.ticks)
        self._clocked = tuple(row for row in self._ticking if row.observes is None)

    def looking(self) -> list[Detector[Any]]:
        """Return the detectors that look on."""
        return [row for row in self.detectors if row.name not in self.failed]

    @property
    def run(self) -> Run:
        """What was ordered."""
        return self.view.run

    @property
    def watched(self) -> bool:
        """Whether ticks are a watcher's."""
        return self.view.watched

    @property
    def streams(self) -> dict[int, RankStream]:
        """Rank → what its lines have told."""
        return self.view.streams

    def looking_at(self, msg: str) -> tuple[Detector[Any], ...]:
        """Return the detectors that look at lines of a message."""
        found = self._by_msg.get(msg)
        if found is None:
            rows = self.looking()
            found = tuple(row for row in rows if msg in row.lines or row.lines is EVERY_LINE)
            self._by_msg[msg] = found
        return found

    def looking_at_steps(self) -> tuple[Detector[Any], ...]:
        """Return the detectors that look at whole steps."""
        return self._stepping

    def looking_at_tick(self, tick: Tick) -> tuple[Detector[Any], ...]:
        """Return the detectors that look at a tick like this one."""
        kinds = tick.observations
        if not kinds:
            return self._clocked
        return tuple(
            row
            for row in self._ticking
            if row.observes is None or not row.observes.isdisjoint(kinds)
        )
