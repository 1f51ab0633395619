"""What do heartbeats and ticks add up to? The one fold, live and offline.

Guarantees: pure (no clock, no file); a tick without bytes and probes that is not late and finds
nothing leaves the state equal, so it need not be recorded; a finding is returned once for each key.
A late tick raises no deadline; a watcher that slept (> `SLEPT_S`) re-arms them all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.judge.watch import identity
from gonogo.judge.watch.processes import Processes, seen_by
from gonogo.judge.watch.registry import OF_BEATS, OF_TICKS, REGISTRY, Row
from gonogo.judge.watch.seen import Arrival, in_order
from gonogo.judge.watch.stream import RankStream, absorb
from gonogo.judge.watch.view import Beat, Event, Run, View, is_late

SLEPT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """All that the fold knows; opaque to everyone else, never changed in place."""

    run: Run
    watched: bool = True
    streams: Mapping[int, RankStream] = field(default_factory=dict)
    processes: Processes = field(default_factory=Processes)
    own: Mapping[Detector, Any] = field(default_factory=dict)
    """Detector → its own state."""
    said: frozenset[str] = frozenset()
    """Keys of all findings so far."""
    latched: Finding | None = None
    """The first halt finding."""
    started_mono: float | None = None
    unreadable: Mapping[int, int] = field(default_factory=dict)
    """Rank → lines of its file that are no heartbeat of its own."""

    def view(self) -> View:
        """Return what detectors look at."""
        return View(
            run=self.run,
            streams=self.streams,
            processes=self.processes,
            watched=self.watched,
            latched=self.latched is not None,
            started_mono=self.started_mono,
            unreadable=self.unreadable,
        )


def start(order: Order, *, watched: bool = True) -> WatchState:
    """Return the state before the first tick.

    Args:
        order: what the run was told.
        watched: False when ticks are made up from the lines themselves (no watch.jsonl).
    """
    return WatchState(
        run=Run(order=order, from_profile=frozenset(order.watch_from_profile)),
        watched=watched,
        own={row.detector: row.state for row in REGISTRY if row.observe is not None},
    )


def fold(
    state: WatchState, tick: Tick, beats: Mapping[int, Sequence[bytes]]
) -> tuple[WatchState, list[Finding]]:
    """Return the state after a tick, and the findings that it raised.

    Args:
        state: after the tick before.
        tick: the watcher's clock and probes.
        beats: rank → the complete raw lines that this tick brought.
    """
    late = is_late(tick)
    brought = any(beats.values()) or bool(tick.ranks or tick.agent or tick.stacks)
    working = _Working(state, tick, brought=brought or late)
    if tick.late_s > SLEPT_S:
        working.rearm()
    for rank in sorted(beats):
        working.read(rank, beats[rank])
    working.observe_tick(late=late)
    return working.state(), working.findings


class _Working:
    """One tick being folded: the only place that changes things, all of them its own copies."""

    def __init__(self, state: WatchState, tick: Tick, *, brought: bool) -> None:
        self._before, self._tick = state, tick
        self._streams = dict(state.streams)
        self._own = dict(state.own)
        self._said = state.said
        self._latched = state.latched
        self._started_mono = state.started_mono
        self._unreadable = state.unreadable
        self._processes = seen_by(state.processes, tick)
        if brought and self._started_mono is None:
            self._started_mono = tick.mono
        self.findings: list[Finding] = []

    def rearm(self) -> None:
        mono = self._tick.mono
        self._streams = {rank: stream.rearmed(mono) for rank, stream in self._streams.items()}
        self._started_mono = mono

    def read(self, rank: int, lines: Sequence[bytes]) -> None:
        """Fold the lines of one rank's file; another rank's lines in it are unreadable, too."""
        parsed, unreadable = _parsed(rank, lines)
        if unreadable:
            counted = self._unreadable.get(rank, 0) + unreadable
            self._unreadable = {**self._unreadable, rank: counted}
        for beat in in_order(parsed):
            stream = self._streams.get(rank) or RankStream(rank=rank)
            self._streams[rank], arrival = absorb(stream, beat, self._tick.mono)
            if arrival in (Arrival.NEW, Arrival.LATE):
                self._observe(OF_BEATS, Beat(line=beat, arrival=arrival, tick=self._tick))

    def observe_tick(self, *, late: bool) -> None:
        """Let the detectors look; those with deadlines only when the tick is not late."""
        rows = (row for row in OF_TICKS if not (late and row.deadline))
        self._observe(rows, self._tick)

    def _observe(self, rows: Iterable[Row], event: Event) -> None:
        view = self._view()
        for row in rows:
            if row.observe is None:
                continue
            own, findings = row.observe(self._own[row.detector], event, view)
            self._own[row.detector] = own
            for finding in findings:
                self._raise(finding)

    def _raise(self, finding: Finding) -> None:
        if finding.key in self._said:
            return
        self._said |= {finding.key}
        self.findings.append(finding)
        if finding.severity is Severity.HALT and self._latched is None:
            self._latched = finding

    def _view(self) -> View:
        return View(
            run=self._before.run,
            streams=self._streams,
            processes=self._processes,
            watched=self._before.watched,
            latched=self._latched is not None,
            started_mono=self._started_mono,
            unreadable=self._unreadable,
        )

    def state(self) -> WatchState:
        return replace(
            self._before,
            streams=self._streams,
            processes=self._processes,
            own=self._own,
            said=self._said,
            latched=self._latched,
            started_mono=self._started_mono,
            unreadable=self._unreadable,
        )


def _parsed(rank: int, lines: Sequence[bytes]) -> tuple[list[Heartbeat], int]:
    """Return a rank's heartbeats among lines, and how many lines were none (empty ones aside)."""
    parsed: list[Heartbeat] = []
    unreadable = 0
    for raw in lines:
        if not raw.strip():
            continue
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            unreadable += 1
            continue
        if beat.rank == rank:
            parsed.append(beat)
        else:
            unreadable += 1
    return parsed, unreadable


def latched(state: WatchState) -> Finding | None:
    """Return the first halt finding, which decides; later ones are recorded only."""
    return state.latched


def armed(state: WatchState) -> dict[Detector, bool]:
    """Return which detectors could find something now; a silent disarming is to be seen."""
    view = state.view()
    return {row.detector: row.armed(view, state.own.get(row.detector)) for row in REGISTRY}


def identity_ok(state: WatchState) -> bool | None:
    """Return True when every rank runs what was ordered, False on a difference, else None."""
    return identity.verdict(state.own[Detector.IDENTITY], state.view())
