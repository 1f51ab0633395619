"""How is a fold put down and taken up again? Its whole state as JSON.

Guarantees: what `load_state` gives back goes on exactly as the state did that `dump_state` wrote,
so a snapshot and the ticks after it come to what the whole fold comes to. A document of another
version of the judge, of other detectors or of another run is refused.
"""

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.timeline.boots import LineRecord
from gonogo.timeline.clock import ActiveClock
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import RankStep
from gonogo.timeline.timeline import Unreadable
from gonogo.watch.detector import Detector
from gonogo.watch.fold import start
from gonogo.watch.guests import failure_of
from gonogo.watch.packages import ERRORS
from gonogo.watch.processes import Processes
from gonogo.watch.sources import made_by
from gonogo.watch.view import Observed
from gonogo.watch.watch_state import WatchState

SAVED_V = 53


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _dump(kind: Any, value: Any) -> Any:
    return wire_value(_adapter(kind).dump_python(value, mode="json"))


def _identity(state: WatchState) -> dict[str, Any]:
    """Return what must be equal for a document to fit."""
    order = state.run.order
    return {
        "v": SAVED_V,
        "sources": made_by().sources,
        "run": order.run,
        "attempt": order.attempt,
        "watched": state.watched,
        "detectors": [str(row.name) for row in state.detectors],
    }


def dump_state(state: WatchState) -> dict[str, Any]:
    """Return a state as a JSON document.

    Raises:
        Corrupt: the state of another package's detector cannot be put down.
    """
    view, steps = state.view, state.view.steps
    return {
        "of": _identity(state),
        "streams": _dump(dict[int, RankStream], view.streams),
        "lines": {str(rank): record.dump() for rank, record in view.lines.items()},
        "processes": _dump(Processes, view.processes),
        "started_mono": view.started_mono,
        "late_since_mono": view.late_since_mono,
        "late_n": view.late_n,
        "clock": _dump(ActiveClock, view.clock),
        "hosts": _dump(dict[int, str], view.hosts),
        "unreadable": _dump(dict[int, Unreadable], view.unreadable),
        "observed": _dump(dict[str, Observed], view.observed),
        "waiting": _dump(dict[int, dict[int, RankStep]], steps.waiting),
        "bare": _dump(dict[int, dict[int, RankStep]], steps.bare),
        "last_step": steps.last,
        "late": sorted(steps.late),
        "own": {
            str(row.name): _dump_own(row, state.own[row.name])
            for row in state.looking()
            if row.State is not None
        },
        "failed": dict(state.failed),
        "said": sorted(state.said),
        "latched": None if state.latched is None else state.latched.wire(),
        "ends": view.ends,
    }


def _dump_own(row: Detector[Any], own: Any) -> Any:
    """Return a detector's own state; one of ours can always be put down."""
    try:
        return _dump(row.State, own)
    except ERRORS as error:
        raise Corrupt(failure_of(row.name, error)) from error


def _load_own(row: Detector[Any], saved: Any) -> Any:
    """Return a detector's own state; what a guest makes of it may be any error."""
    try:
        return _adapter(row.State).validate_python(saved)
    except ERRORS as error:
        raise Corrupt(failure_of(row.name, error)) from error


def load_state(order: Order, document: dict[str, Any]) -> WatchState:
    """Return the state that a document holds.

    Raises:
        Corrupt: it is no such document, or not one of this run, these detectors and this version.
    """
    state = start(order)
    try:
        if document["of"] != wire_value(_identity(state)):
            raise Corrupt("the snapshot is of another run, version or set of detectors")
        _fill(state, document)
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise Corrupt(f"the snapshot cannot be read: {error!r}") from error
    return state


def _fill(state: WatchState, document: dict[str, Any]) -> None:
    view = state.view
    view.streams = _adapter(dict[int, RankStream]).validate_python(document["streams"])
    view.lines = {int(rank): LineRecord.load(row) for rank, row in document["lines"].items()}
    view.processes = _adapter(Processes).validate_python(document["processes"])
    view.started_mono = document["started_mono"]
    view.late_since_mono, view.late_n = document["late_since_mono"], document["late_n"]
    view.clock = _adapter(ActiveClock).validate_python(document["clock"])
    view.hosts = _adapter(dict[int, str]).validate_python(document["hosts"])
    view.unreadable = _adapter(dict[int, Unreadable]).validate_python(document["unreadable"])
    view.observed = _adapter(dict[str, Observed]).validate_python(document["observed"])
    waiting = _adapter(dict[int, dict[int, RankStep]]).validate_python(document["waiting"])
    view.steps.waiting, view.steps.last = waiting, document["last_step"]
    bare = _adapter(dict[int, dict[int, RankStep]]).validate_python(document["bare"])
    view.steps.bare = bare
    view.steps.late = set(document["late"])
    state.leave_out(document["failed"])
    for row in state.looking():
        if row.State is not None:
            state.own[row.name] = _load_own(row, document["own"][str(row.name)])
    state.said = set(document["said"])
    latched = document["latched"]
    state.latched = None if latched is None else Finding.model_validate(latched)
    view.ends = bool(document["ends"])
