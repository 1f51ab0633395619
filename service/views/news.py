"""Events, alerts and workers as REST shows them."""

from gonogo.contract.api import (
    AlertView,
    DeliveryState,
    DeliveryView,
    EventView,
    WorkerState,
    WorkerView,
)
from service.db.schema import AlertRow, DeliveryRow, EventRow, WorkerRow
from service.experiments.workers import is_heard
from service.instants import instant, stamp


def view_event(row: EventRow) -> EventView:
    """Return an event."""
    return EventView(
        id=row.id,
        experiment=row.experiment,
        seq=row.seq,
        cursor=row.cursor,
        type=row.type,
        run=row.run,
        phase=row.phase,
        actor=row.actor,
        at=stamp(row.at),
        data=row.data,
    )


def view_worker(row: WorkerRow, now: float) -> WorkerView:
    """Return a worker."""
    state = WorkerState.UP if is_heard(row, now) else WorkerState.SILENT
    if state is WorkerState.UP and row.draining:
        state = WorkerState.DRAINING
    claim = row.claim
    return WorkerView(
        id=row.name,
        host=row.host,
        state=state,
        version=claim.version,
        labels=claim.labels,
        profiles=claim.profiles,
        devices=claim.devices,
        free=claim.free,
        active=claim.active,
        allow=claim.allow,
        allow_env=claim.allow_env,
        metrics_url=claim.metrics_url,
        last_seen_at=stamp(row.seen_at),
    )


def view_alert(row: AlertRow, deliveries: list[DeliveryRow], url: str) -> AlertView:
    """Return an alert with the state of its deliveries."""
    states = {delivery.state for delivery in deliveries}
    state = DeliveryState.UNSUBSCRIBED if row.spread else DeliveryState.PENDING
    if deliveries:
        worst = (DeliveryState.PENDING, DeliveryState.FAILED, DeliveryState.DELIVERED)
        state = next(name for name in worst if name in states)
    return AlertView(
        id=row.id,
        type=row.type,
        experiment=row.experiment,
        run=row.run,
        at=stamp(row.at),
        text=str(row.data.get("text", "")),
        data={**row.data, "url": alert_url(row, url)},
        state=state,
        deliveries=[
            DeliveryView(
                webhook=delivery.webhook,
                state=delivery.state,
                attempts=delivery.attempts,
                delivered_at=instant(delivery.delivered_at),
                error=delivery.error,
            )
            for delivery in deliveries
        ],
    )


def alert_url(row: AlertRow, url: str) -> str:
    """Return where a person reads about an alert."""
    return f"{url}/experiments/{row.experiment}" if row.experiment else url
