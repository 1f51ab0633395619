"""Runs, decisions, events, alerts and workers as REST shows them."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel

from gonogo.contract.api import (
    AlertView,
    DeliveryState,
    DeliveryView,
    EventView,
    RunView,
    WorkerState,
    WorkerView,
)
from gonogo.contract.heartbeat import Identity
from service.db.schema import (
    AlertRow,
    DecisionRow,
    DeliveryRow,
    EventRow,
    PhaseRow,
    RunRow,
    WorkerRow,
)
from service.db.store import Session
from service.experiments.workers import is_heard, ran_on
from service.queries.runs import load_progress
from service.text import instant, stamp

_View = TypeVar("_View", bound=BaseModel)


def view_of(kind: type[_View], row: object, /, **more: Any) -> _View:
    """Return a view: `more`, and the attributes of a row that bear the names of its fields.

    Moments, Unix seconds in a row, are shown as RFC 3339.
    """
    for name in kind.model_fields:
        if name not in more and hasattr(row, name):
            value = getattr(row, name)
            more[name] = instant(value) if name == "at" or name.endswith("_at") else value
    return kind(**more)


def load_run_view(session: Session, row: RunRow) -> RunView:
    """Return a run with what telemetry reported last; without an order, the steps of its phase."""
    progress, order = load_progress(session, row.id), row.order or {}
    identity = row.model or progress.identity
    steps = int(order.get("steps") or 0)
    return view_of(
        RunView,
        row,
        step=progress.step,
        steps=steps or session.get_one(PhaseRow, (row.experiment, row.phase)).steps,
        init_from=order.get("init_from"),
        loss=float(progress.loss) if progress.loss is not None else None,
        toks_per_s=progress.toks_per_s,
        last_heartbeat_at=instant(progress.heartbeat_at),
        identity=Identity.model_validate(identity) if identity else None,
        host=ran_on(row),
    )


def view_decision(row: DecisionRow) -> dict[str, Any]:
    """Return a decision's document as it was recorded, so that its digests hold anywhere."""
    found: dict[str, Any] = json.loads(row.document)
    return found


def view_event(row: EventRow) -> EventView:
    """Return an event."""
    return view_of(EventView, row)


def view_worker(row: WorkerRow, now: float) -> WorkerView:
    """Return a worker."""
    state = WorkerState.UP if is_heard(row, now) else WorkerState.SILENT
    if state is WorkerState.UP and row.draining:
        state = WorkerState.DRAINING
    seen_at = stamp(row.seen_at)
    return view_of(WorkerView, row.claim, id=row.name, state=state, last_seen_at=seen_at)


def view_alert(row: AlertRow, deliveries: list[DeliveryRow], url: str) -> AlertView:
    """Return an alert with the state of its deliveries."""
    states = {delivery.state for delivery in deliveries}
    state = DeliveryState.UNSUBSCRIBED if row.spread else DeliveryState.PENDING
    if deliveries:
        worst = (DeliveryState.PENDING, DeliveryState.FAILED, DeliveryState.DELIVERED)
        state = next(name for name in worst if name in states)
    return view_of(
        AlertView,
        row,
        text=str(row.data.get("text", "")),
        data={**row.data, "url": alert_url(row, url)},
        state=state,
        deliveries=[view_of(DeliveryView, delivery) for delivery in deliveries],
    )


def alert_url(row: AlertRow, url: str) -> str:
    """Return where a person reads about an alert."""
    return f"{url}/experiments/{row.experiment}" if row.experiment else url
