"""What do heartbeats and ticks add up to? The one fold, live and offline.

Guarantees: no clock and no file, so the same lines and ticks come to the same findings anywhere; a
tick that brings nothing, is not late and finds nothing leaves the state equal, so it need not be
recorded; a finding is returned once for each key. A late tick raises no deadline. Ticks and lines
enter with active time (`gonogo.timeline.clock`).

A state moves on in place: what `fold` was given is used up. `look` is the question what a tick
without lines would find, and changes nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.near import Near
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import LinesSeen, Tick
from gonogo.contract.watch import Action
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import Step
from gonogo.timeline.steps import Ranks
from gonogo.timeline.timeline import Sink
from gonogo.watch.detector import Seen
from gonogo.watch.detectors import identity
from gonogo.watch.guests import begin, failure_finding, failure_of
from gonogo.watch.packages import ERRORS
from gonogo.watch.processes import seen_by
from gonogo.watch.view import (
    Beat,
    Observed,
    Run,
    View,
    is_late,
)
from gonogo.watch.watch_state import WatchState

_HOST = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""What a host may be called in what people read."""


def start(order: Order, *, watched: bool = True) -> WatchState:
    """Return the state before the first tick.

    Args:
        order: what the run was told; it names the detectors and their versions.
        watched: False when ticks are made up from the lines themselves (no watch.jsonl).
    """
    run = Run(order=order, from_profile=frozenset(order.watch_from_profile))
    detectors, own, failed = begin(run)
    view = View(run=run, watched=watched)
    return WatchState(view=view, detectors=detectors, own=own, failed=failed)


def fold(
    state: WatchState,
    tick: Tick,
    beats: Mapping[int, Sequence[bytes]],
    sink: Sink | None = None,
) -> tuple[WatchState, list[Finding]]:
    """Return the state after a tick, and the findings that it raised.

    Args:
        state: after the tick before; used up.
        tick: the watcher's clock and probes.
        beats: rank → the complete raw lines that this tick brought.
        sink: is given every line that is not a repetition.
    """
    view = state.view
    parsed = {
        rank: view.parse(rank, lines, view.clock.at(tick.mono)) for rank, lines in beats.items()
    }
    brought = any(beats.values())
    return fold_beats(state, tick, parsed, sink, brought=brought)


def fold_beats(
    state: WatchState,
    tick: Tick,
    beats: Mapping[int, list[Heartbeat]],
    sink: Sink | None = None,
    *,
    brought: bool = False,
) -> tuple[WatchState, list[Finding]]:
    """Return what `fold` returns, from lines that are parsed already.

    Args:
        brought: whether lines came that were no heartbeats.
    """
    view, findings = state.view, list[Finding]()
    tick = view.clock.advance(tick)
    if any(beats.values()):
        tick = view.skip_silence(tick)
    view.note(tick)
    late = view.is_late(tick)
    brought = brought or any(beats.values()) or _probed(tick)
    if view.started_mono is None and (brought or is_late(tick)):
        view.started_mono = tick.mono
    view.processes = seen_by(view.processes, tick)
    view.hosts.update({row.node: row.host for row in tick.nodes if _HOST.fullmatch(row.host)})
    for kind, payload in tick.observations.items():
        view.observed[kind] = Observed(mono=tick.mono, ts=tick.ts, payload=payload)
    for rank in sorted(beats):
        placed = view.advance(view.run.order, rank, beats[rank], tick.mono, sink)
        for beat, arrival, stream in placed:
            _take(state, Beat(beat, arrival, tick), stream, findings)
    _observe_tick(state, tick, late=late, findings=findings)
    return state, findings


def _probed(tick: Tick) -> bool:
    return bool(tick.ranks or tick.agent or tick.stacks or tick.observations)


def look(state: WatchState, tick: Tick) -> list[Finding]:
    """Return what a tick without lines and probes would find now; the state stays as it is."""
    findings, tick = list[Finding](), state.view.clock.active(tick)
    for row in state.looking_at_tick(tick):
        try:
            seen = row.observe_tick(state.own[row.name], tick, state.view)[1]
            findings += [_by_action(state, finding) for finding in seen]
        except ERRORS as error:
            failure_of(row.name, error)  # a guest's: the tick itself will say so
    return [finding for finding in findings if finding.key not in state.said]


def _take(state: WatchState, event: Beat, stream: RankStream, findings: list[Finding]) -> None:
    """Show the detectors a line, and the steps that it ends."""
    view, beat = state.view, event.line
    for row in state.looking_at(beat.msg):
        _ask(state, row.name, row.observe_line, event, findings)
    ranks = Ranks(view.run.order.world_size, view.streams)
    for step in view.steps.take(beat, stream, ranks, event.tick):
        _observe_step(state, step, findings)


def _ask(
    state: WatchState,
    name: str,
    observe: Callable[[Any, Any, View], Seen[Any]],
    event: Beat | Step | Tick,
    findings: list[Finding],
) -> None:
    """Have a detector observe an event; a guest that raises an error is left out from here on."""
    try:
        state.own[name], found = observe(state.own[name], event, state.view)
        if found:
            _raise(state, found, findings)
    except ERRORS as error:
        state.leave_out({name: failure_of(name, error)})


def _observe_step(state: WatchState, step: Step, findings: list[Finding]) -> None:
    for row in state.looking_at_steps():
        _ask(state, row.name, row.observe_step, step, findings)


def _observe_tick(state: WatchState, tick: Tick, *, late: bool, findings: list[Finding]) -> None:
    """Let the detectors look; those with deadlines only when the tick is not late."""
    for row in state.looking_at_tick(tick):
        if not (late and row.deadline):
            _ask(state, row.name, row.observe_tick, tick, findings)
    if state.failed:
        failed = state.failed.items()
        rows = [failure_finding(name, text, tick, state.view) for name, text in failed]
        _raise(state, rows, findings)


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
    return finding.model_copy(update={"severity": Severity.WARN, "act": None, "key": key})


def latched(state: WatchState) -> Finding | None:
    """Return the first halt finding, which decides; later ones are recorded only."""
    return state.latched


def armed(state: WatchState) -> dict[str, bool]:
    """Return which detectors could find something now; a silent disarming is to be seen."""
    found = dict[str, bool].fromkeys((*(row.name for row in state.detectors), *state.failed), False)
    for row in state.looking():
        try:
            found[row.name] = row.armed(state.own[row.name], state.view)
        except ERRORS as error:
            failure_of(row.name, error)  # a guest that cannot say so is not
    return found


def near(state: WatchState, mono: float) -> dict[str, Near]:
    """Return how near each detector is to its limit, or why it is blind.

    Args:
        mono: the watcher's clock, as in a tick.
    """
    found = {name: Near(blind=why) for name, why in state.failed.items()}
    for row in state.looking():
        try:
            found[row.name] = row.near(state.own[row.name], state.view, mono)
        except ERRORS as error:
            found[row.name] = Near(blind=failure_of(row.name, error))
    return found


def identity_ok(state: WatchState) -> bool | None:
    """Return True when every rank runs what was ordered, False on a difference, else None."""
    told = state.own.get(Name.IDENTITY)
    return None if told is None else identity.equals_order(told, state.view)


def lines_seen(state: WatchState, ranks: Iterable[int]) -> dict[str, LinesSeen]:
    """Return how far the lines of `ranks` have been read, for the tick that brought them."""
    found = {str(rank): state.view.lines_seen(rank) for rank in ranks}
    return {rank: seen for rank, seen in found.items() if seen is not None}
