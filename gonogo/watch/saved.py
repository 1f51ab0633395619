"""Write a fold as JSON, and continue it from there.

What `load_state` returns continues exactly as the state did that `dump_state` wrote. So a snapshot
and the ticks after it come to what the whole fold comes to. A document of other judging sources, of
other detectors or of another run is refused.
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.watch.detector import Detector
from gonogo.watch.fold import WatchState, start
from gonogo.watch.registry import ERRORS, failure_of, made_by
from gonogo.watch.view import View

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
