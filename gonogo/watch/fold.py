"""Fold heartbeats and ticks into findings. The one fold, live and offline.

The fold has no clock and no file, so the same lines and ticks give the same findings anywhere. A
finding is returned once for each key. A tick that brings nothing, is not late and finds nothing
leaves the state equal, so it need not be recorded. A late tick raises no deadline. Ticks and lines
enter with active time (`gonogo.timeline.timeline`).

`fold` changes the state that it gets; do not use it afterwards. `look` returns what a tick without
lines would find, and changes nothing.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import ProcessState, Tick
from gonogo.contract.watch import Action
from gonogo.timeline.lines import Line
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import Step
from gonogo.timeline.timeline import Sink
from gonogo.watch.detector import RANKS, Detector, Seen
from gonogo.watch.detectors.hygiene import equals_order
from gonogo.watch.registry import ERRORS, failure_of, made_by, ordered_detectors
from gonogo.watch.view import Beat, Observed, Run, View, found, seen_by

_HOST = re.compile(r"[\w.-]{1,64}", re.ASCII)
_DEAD = ProcessState.DEAD
Asked = tuple[str, Callable[[Any, Any, View], Seen[Any]]]
"""A detector's name, and its method for one kind of event."""


@dataclass(slots=True, kw_only=True)
class WatchState:
    """All that the fold knows; opaque to everyone else."""

    view: View
    detectors: tuple[Detector[Any], ...]
    own: dict[str, Any]
    said: set[str] = field(default_factory=set)
    latched: Finding | None = None
    failed: dict[str, str] = field(default_factory=dict)
    """Detector of another package that watches no more → why."""
    _by_msg: dict[str, list[Asked]] = field(default_factory=dict)
    _on_step: list[Asked] = field(default_factory=list)
    _on_tick: list[Detector[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leave_out({})

    def leave_out(self, failed: Mapping[str, str]) -> None:
        """Show these detectors no further event."""
        self.failed |= failed
        looking = self.looking()
        self._by_msg = {
            msg: [(row.name, row.observe_line) for row in looking if msg in row.lines]
            for msg in set[str]().union(*(row.lines for row in looking))
        }
        self._on_step = [(row.name, row.observe_step) for row in looking if row.steps]
        self._on_tick = [row for row in looking if row.ticks]

    def looking(self) -> list[Detector[Any]]:
        """Return the detectors that still watch."""
        return [row for row in self.detectors if row.name not in self.failed]

    @property
    def run(self) -> Run:
        """What was ordered."""
        return self.view.run

    @property
    def streams(self) -> dict[int, RankStream]:
        """Rank → its position."""
        return self.view.streams

    def on_tick(self, tick: Tick, *, late: bool = False) -> list[Asked]:
        """Return the detectors that observe a tick like this one; `late`: without deadlines."""
        streams, processes = self.view.streams, self.view.processes
        moved = [
            row.advanced_mono for row in streams.values() if row.completed_steps and not row.done
        ]
        died = processes.agent.state is _DEAD
        died = died or any(row.state is _DEAD for row in processes.ranks.values())
        trains = len(moved) >= max(self.run.order.world_size, len(streams)) and not died
        standing_s = tick.mono - min(moved) if trains else math.inf
        kinds = (*tick.observations, RANKS) if tick.ranks else tick.observations
        return [
            (row.name, row.observe_tick)
            for row in self._on_tick
            if standing_s > row.quiet_s
            and not (late and row.deadline)
            and (row.after is None or row.after in self.view.observed)
            and (row.observes is None or not row.observes.isdisjoint(kinds))
        ]


def start(order: Order, *, watched: bool = True) -> WatchState:
    """Return the state before the first tick."""
    run = Run(order=order, from_profile=frozenset(order.watch_from_profile))
    detectors, own, failed = list[Detector[Any]](), dict[str, Any](), dict[str, str]()
    for kind in ordered_detectors(run):
        name = str(kind.name)
        try:
            row = kind(run)
            own[name] = row.begin()
            detectors.append(row)
        except ERRORS as error:
            failed[name] = failure_of(name, error)
    view = View(run=run, watched=watched)
    return WatchState(view=view, detectors=tuple(detectors), own=own, failed=failed)


def fold(
    state: WatchState,
    tick: Tick,
    beats: Mapping[int, Sequence[bytes]],
    sink: Sink | None = None,
) -> tuple[WatchState, list[Finding]]:
    """Return the state after a tick, and the findings that it raised.

    Args:
        state: after the tick before; used up.
        beats: rank → the complete raw lines that this tick delivered.
        sink: receives every line that is not a repetition.
    """
    view = state.view
    mono = tick.mono - view.clock.away_s
    parsed = {rank: view.parse(rank, lines, mono) for rank, lines in beats.items()}
    return fold_beats(state, tick, parsed, sink, delivered=any(beats.values()))


def fold_beats(
    state: WatchState,
    tick: Tick,
    beats: Mapping[int, list[Line]],
    sink: Sink | None = None,
    *,
    delivered: bool = False,
) -> tuple[WatchState, list[Finding]]:
    """Return what `fold` returns, from lines that are parsed already."""
    view, findings = state.view, list[Finding]()
    if tick.late_s or view.clock.away_s:
        tick = view.clock.advance(tick)
    lines = any(beats.values())
    if lines and view.streams:
        heard_mono = max(stream.heard_mono for stream in view.streams.values())
        if tick.mono - heard_mono > view.run.watch.alive_lost.suspect_s:
            tick = view.skip_silence(tick)
    late = view.is_late(tick) if tick.late_s else False
    if tick.nodes or tick.ranks or tick.agent or tick.stacks or tick.observations:
        delivered = _take_probes(view, tick) or delivered
    if view.started_mono is None and (delivered or lines or late):
        view.started_mono = tick.mono
    if lines:
        _take_lines(state, tick, beats, sink, findings)
    _ask(state, state.on_tick(tick, late=late), tick, findings)
    if state.failed:
        failed = state.failed.items()
        _raise(state, [_failure(view, tick, name, text) for name, text in failed], findings)
    return state, findings


def _take_probes(view: View, tick: Tick) -> bool:
    """Keep what a tick shows besides lines; return whether that was more than nodes."""
    view.hosts.update({row.node: row.host for row in tick.nodes if _HOST.fullmatch(row.host)})
    view.processes = seen_by(view.processes, tick)
    for kind, payload in tick.observations.items():
        view.observed[kind] = Observed(mono=tick.mono, ts=tick.ts, payload=payload)
    return bool(tick.ranks or tick.agent or tick.stacks or tick.observations)


def _take_lines(
    state: WatchState,
    tick: Tick,
    beats: Mapping[int, list[Line]],
    sink: Sink | None,
    findings: list[Finding],
) -> None:
    """Show the detectors each line, and the steps that it ends."""
    view = state.view
    for rank in sorted(beats):
        placed = view.advance(view.run.order, rank, beats[rank], tick, sink)
        for beat, arrival, steps in placed:
            if asked := state._by_msg.get(beat.msg):
                _ask(state, asked, Beat(beat, arrival, tick), findings)
            for step in steps:
                _ask(state, state._on_step, step, findings)


def look(state: WatchState, tick: Tick) -> list[Finding]:
    """Return what a tick without lines and probes would find now; the state stays as it is."""
    findings, tick = list[Finding](), state.view.clock.active(tick)
    for name, observe in state.on_tick(tick):
        try:
            seen = observe(state.own[name], tick, state.view)[1]
            findings += [_by_action(state, finding) for finding in seen]
        except ERRORS as error:
            failure_of(name, error)  # a plug-in's: the tick itself will report it
    return [finding for finding in findings if finding.key not in state.said]


def _ask(
    state: WatchState, asked: Sequence[Asked], event: Beat | Step | Tick, findings: list[Finding]
) -> None:
    """Have detectors observe an event; a plug-in that raises an error is left out from here on."""
    own, view = state.own, state.view
    for name, observe in asked:
        try:
            own[name], found = observe(own[name], event, view)
            if found:
                _raise(state, found, findings)
        except ERRORS as error:
            state.leave_out({name: failure_of(name, error)})


def _failure(view: View, tick: Tick, name: str, text: str) -> Finding:
    """Return the warning that a plug-in watches no more."""
    return found(view, name, Severity.WARN, episode="failed", at=tick.ts, text=text)


def _raise(state: WatchState, found: Iterable[Finding], findings: list[Finding]) -> None:
    for finding in (_by_action(state, row) for row in found):
        if finding.key in state.said:
            continue
        state.said.add(finding.key)
        findings.append(finding)
        if finding.severity is not Severity.HALT:
            continue
        if state.latched is None:
            state.latched = finding
        if finding.act in (None, Act.NOW):
            state.view.ends = True


def _by_action(state: WatchState, finding: Finding) -> Finding:
    """Return the finding as the plan wants it: a halt of a detector that may only warn warns."""
    order = state.run.order
    if finding.severity is not Severity.HALT:
        return finding
    if order.watch.action_of(finding.detector) is Action.HALT:
        return finding
    halts, warns = (f"/{finding.detector}/{row}/" for row in (Severity.HALT, Severity.WARN))
    key = finding.key.replace(halts, warns, 1)
    return finding.model_copy(update={"severity": Severity.WARN, "act": Act.GATE, "key": key})


def armed(state: WatchState) -> dict[str, bool]:
    """Return which detectors could find something now; a silent disarming must be visible."""
    found = dict[str, bool].fromkeys((*(row.name for row in state.detectors), *state.failed), False)
    for row in state.looking():
        try:
            found[row.name] = row.armed(state.own[row.name], state.view)
        except ERRORS as error:
            failure_of(row.name, error)  # a plug-in that raises an error is not armed
    return found


def near(state: WatchState, mono: float) -> dict[str, Near]:
    """Return how near each detector is to its limit, or why it is blind."""
    found = {name: Near(blind=why) for name, why in state.failed.items()}
    mono = state.view.clock.at(mono)
    for row in state.looking():
        try:
            found[row.name] = row.near(state.own[row.name], state.view, mono)
        except ERRORS as error:
            found[row.name] = Near(blind=failure_of(row.name, error))
    return found


def identity_ok(state: WatchState) -> bool | None:
    """Return True if every rank runs what was ordered, False on a difference, else None."""
    told = state.own.get(Name.IDENTITY)
    return None if told is None else equals_order(told, state.view)


ORDERED = frozenset({"run", "watched", "at_end"})
"""Fields of a view that `start` sets."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _parts() -> dict[str, Any]:
    """Return the fields of a view that are written, and their types."""
    hints = get_type_hints(View)
    return {row.name: hints[row.name] for row in fields(View) if row.name not in ORDERED}


def _dump(kind: Any, value: Any) -> Any:
    return wire_value(_adapter(kind).dump_python(value, mode="json"))


def _identity(state: WatchState) -> dict[str, Any]:
    """Return what must be equal for a document to fit."""
    order = state.run.order
    return {
        "sources": made_by().sources,
        "run": order.run,
        "attempt": order.attempt,
        "watched": state.view.watched,
        "detectors": [str(row.name) for row in state.detectors],
    }


def _with_state(state: WatchState) -> Iterator[Detector[Any]]:
    return (row for row in state.looking() if row.State is not None)


def dump_state(state: WatchState) -> dict[str, Any]:
    """Return a state as a JSON document.

    Raises:
        Corrupt: the state of a plug-in cannot be written.
    """
    own = dict[str, Any]()
    for row in _with_state(state):
        try:
            own[str(row.name)] = _dump(row.State, state.own[row.name])
        except ERRORS as error:
            raise Corrupt(failure_of(row.name, error)) from error
    return {
        "of": _identity(state),
        **{name: _dump(kind, getattr(state.view, name)) for name, kind in _parts().items()},
        "own": own,
        "failed": dict(state.failed),
        "said": sorted(state.said),
        "latched": None if state.latched is None else state.latched.wire(),
    }


def load_state(order: Order, document: dict[str, Any]) -> WatchState:
    """Return the state that a document holds.

    Raises:
        Corrupt: it is no such document, or not one of this run, these detectors and these sources.
    """
    state = start(order)
    try:
        if document["of"] != wire_value(_identity(state)):
            raise Corrupt("the snapshot is of another run, version or set of detectors")
        for name, kind in _parts().items():
            setattr(state.view, name, _adapter(kind).validate_python(document[name]))
        state.leave_out(document["failed"])
        for row in _with_state(state):
            saved = document["own"][str(row.name)]
            try:
                state.own[row.name] = _adapter(row.State).validate_python(saved)
            except ERRORS as error:
                raise Corrupt(failure_of(row.name, error)) from error
        latched = document["latched"]
        state.said = set(document["said"])
        state.latched = None if latched is None else Finding.model_validate(latched)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"the snapshot cannot be read: {error!r}") from error
    return state
