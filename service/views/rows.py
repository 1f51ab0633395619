"""Runs, decisions, events, alerts and workers as REST shows them."""

import json
from typing import Any

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
    ProgressRow,
    RunRow,
    WorkerRow,
)
from service.db.store import Session
from service.experiments.workers import is_heard, ran_on
from service.instants import instant, stamp
from service.queries.experiments import load_phase
from service.queries.runs import load_progress


def view_run(row: RunRow, progress: ProgressRow) -> RunView:
    """Return a run with what telemetry reported last."""
    identity = row.model or progress.identity
    steps = int((row.order or {}).get("steps") or 0)
    return RunView(
        id=row.id,
        experiment=row.experiment,
        phase=row.phase,
        attempt=row.attempt,
        reason=row.reason,
        state=row.state,
        suspect=row.suspect,
        lost=row.lost,
        outcome=row.outcome,
        verdict=row.verdict,
        worker=row.worker,
        step=progress.step,
        steps=steps,
        init_from=(row.order or {}).get("init_from"),
        resume_from=row.resume_from,
        loss=float(progress.loss) if progress.loss is not None else None,
        toks_per_s=progress.toks_per_s,
        last_heartbeat_at=instant(progress.heartbeat_at),
        identity=Identity.model_validate(identity) if identity else None,
        dir=row.dir,
        host=ran_on(row),
        created_at=stamp(row.created_at),
        started_at=instant(row.started_at),
        ended_at=instant(row.ended_at),
    )


def load_run_view(session: Session, row: RunRow) -> RunView:
    """Return a run as it stands; one without an order has the steps of its phase."""
    view = view_run(row, load_progress(session, row.id))
    if view.steps:
        return view
    steps = load_phase(session, row.experiment, row.phase).steps
    return view.model_copy(update={"steps": steps})


def view_decision(row: DecisionRow) -> dict[str, Any]:
    """Return a decision's document as it was recorded, so that its digests hold anywhere."""
    found: dict[str, Any] = json.loads(row.document)
    return found


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
