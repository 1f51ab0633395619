"""Where the time went: of an experiment and its runs, and of the whole fleet."""

from typing import Annotated

from fastapi import APIRouter, Query

from gonogo.contract.goodput import ExperimentGoodput, FleetGoodput
from service.http.auth import Service, Viewer
from service.http.transactions import Reading
from service.queries.experiments import load_experiment
from service.views.goodput import FLEET_HOURS, load_experiment_goodput, load_fleet_goodput

router = APIRouter(tags=["overview"])


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
    """Say where the device time of all runs went that go on or have ended lately."""
    return load_fleet_goodput(session, context.now(), hours)
