"""Where the time went: of an experiment and its runs, and of the whole fleet."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from gonogo.contract.goodput import ExperimentGoodput, FleetGoodput
from service.experiments.lifecycle import load_experiment
from service.http.auth import Service, Viewer
from service.views.goodput import FLEET_HOURS, load_experiment_goodput, load_fleet_goodput

router = APIRouter(tags=["overview"])


@router.get("/experiments/{experiment}/goodput", operation_id="show_experiment_goodput")
def show_experiment_goodput(context: Service, _: Viewer, experiment: str) -> ExperimentGoodput:
    """Say where the time of an experiment and of each of its runs went."""

    def work(session: Session) -> ExperimentGoodput:
        row = load_experiment(session, experiment)
        return load_experiment_goodput(session, row, context.now())

    return context.store.read(work)


@router.get("/goodput", operation_id="show_fleet_goodput")
def show_fleet_goodput(
    context: Service,
    _: Viewer,
    hours: Annotated[
        float, Query(gt=0, le=87_600, description="How long ago a run may have ended.")
    ] = FLEET_HOURS,
) -> FleetGoodput:
    """Say where the device time of all runs went that go on or have ended lately."""
    return context.store.read(lambda session: load_fleet_goodput(session, context.now(), hours))
