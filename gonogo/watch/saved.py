"""Write a fold as JSON, and continue it from there.

What `load_state` returns continues exactly as the state did that `dump_state` wrote. So a snapshot
and the ticks after it come to what the whole fold comes to. A document of other judging sources, of
other detectors or of another run is refused.
"""

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.rank import RankStream
from gonogo.timeline.step import Steps
from gonogo.timeline.timeline import ActiveClock, Unreadable
from gonogo.watch.fold import WatchState, start
from gonogo.watch.processes import Processes
from gonogo.watch.registry import ERRORS, failure_of, made_by
from gonogo.watch.view import Observed

SAVED_V = 55
PARTS: dict[str, Any] = {
    "clock": ActiveClock,
    "streams": dict[int, RankStream],
    "steps": Steps,
    "lines": dict[int, LineRecord],
    "unreadable": dict[int, Unreadable],
    "processes": Processes,
    "hosts": dict[int, str],
    "observed": dict[str, Observed],
    "started_mono": float | None,
    "ends": bool,
}
"""Field of a view → its type."""


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
        "watched": state.view.watched,
        "detectors": [str(row.name) for row in state.detectors],
    }


def dump_state(state: WatchState) -> dict[str, Any]:
    """Return a state as a JSON document.

    Raises:
        Corrupt: the state of a plug-in cannot be written.
    """
    view, own = state.view, dict[str, Any]()
    for row in state.looking():
        if row.State is not None:
            try:
                own[str(row.name)] = _dump(row.State, state.own[row.name])
            except ERRORS as error:
                raise Corrupt(failure_of(row.name, error)) from error
    return {
        "of": _identity(state),
        **{name: _dump(kind, getattr(view, name)) for name, kind in PARTS.items()},
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
        _fill(state, document)
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise Corrupt(f"the snapshot cannot be read: {error!r}") from error
    return state


def _fill(state: WatchState, document: dict[str, Any]) -> None:
    for name, kind in PARTS.items():
        setattr(state.view, name, _adapter(kind).validate_python(document[name]))
    state.leave_out(document["failed"])
    for row in state.looking():
        if row.State is not None:
            saved = document["own"][str(row.name)]
            try:
                state.own[row.name] = _adapter(row.State).validate_python(saved)
            except ERRORS as error:
                raise Corrupt(failure_of(row.name, error)) from error
    state.said = set(document["said"])
    latched = document["latched"]
    state.latched = None if latched is None else Finding.model_validate(latched)
