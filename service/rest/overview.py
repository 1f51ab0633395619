"""What happened over all experiments: events, alerts, workers, and where the time went."""

from typing import Annotated

from fastapi import APIRouter, Query

from gonogo.contract.api import AlertView, EventView, WorkerView
from gonogo.contract.goodput import ExperimentGoodput, FleetGoodput
from gonogo.contract.ids import Kind
from service.http.auth import Service, Viewer
from service.http.dependencies import Cursor, Limit, Page, Reading, id_cursor, number_cursor
from service.queries.callers import load_alerts, load_workers_page
from service.queries.experiments import load_events_page, load_experiment
from service.views.goodput import FLEET_HOURS, load_experiment_goodput, load_fleet_goodput
from service.views.rows import view_alert, view_event, view_worker

router = APIRouter(tags=["overview"])


@router.get("/workers", operation_id="list_workers")
def list_workers(
    session: Reading, context: Service, _: Viewer, limit: Limit = 200, cursor: Cursor = None
) -> Page[WorkerView]:
    """List the workers that ever claimed."""
    rows, after = load_workers_page(session, limit=limit, after=cursor)
    now = context.now()
    return Page[WorkerView](items=[view_worker(row, now) for row in rows], next_cursor=after)


@router.get("/events", operation_id="list_events")
def list_events(
    session: Reading,
    _: Viewer,
    after: Annotated[int, Query(ge=0, lt=2**53, description="`cursor` of the last one seen.")] = 0,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Page[EventView]:
    """List the events of all experiments in one order that never changes."""
    first = number_cursor(cursor) or after
    rows, next_cursor = load_events_page(session, limit=limit, after=first)
    return Page[EventView](items=[view_event(row) for row in rows], next_cursor=next_cursor)


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(
    session: Reading, context: Service, _: Viewer, limit: Limit = 100, cursor: Cursor = None
) -> Page[AlertView]:
    """List alerts, newest first, each with what became of its deliveries."""
    rows, after = load_alerts(session, limit=limit, after=id_cursor(cursor, Kind.ALERT))
    items = [view_alert(row, deliveries, context.url) for row, deliveries in rows]
    return Page[AlertView](items=items, next_cursor=after)


@router.get("/experiments/{experiment}/goodput", operation_id="show_experiment_goodput")
def show_experiment_goodput(
    session: Reading, context: Service, _: Viewer, experiment: str
) -> ExperimentGoodput:
    """Say where the time of an experiment and of each of its runs went."""
    row = load_experiment(session, experiment)
    return load_experiment_goodput(session, row, context.now())


@router.get("/goodput", operation_id="show_fleet_goodput")
def show_fleet_goodput(
    session: Reading,
    context: Service,
    _: Viewer,
    hours: Annotated[
        float, Query(gt=0, le=87_600, description="How long ago a run may have ended.")
    ] = FLEET_HOURS,
) -> FleetGoodput:
    """Say where the device time of all runs went that are active or have ended lately."""
    return load_fleet_goodput(session, context.now(), hours)
