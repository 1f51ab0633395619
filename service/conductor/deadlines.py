"""Which run is too slow for the deadline that its plan sets? It is told of once, while it is on.

A criterion on `forecast_s` is judged when its phase has ended; that 62 days will not be 40 hours is
known after minutes. Nothing is halted for it: a person decides.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertType
from gonogo.contract.criterion import Metric
from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.db.schema import ExperimentRow, RunRow
from service.experiments.alert_text import with_next
from service.experiments.forecasts import load_forecast
from service.experiments.lifecycle import CONDUCTOR, Deed, lock_run, queue_alert, record_event
from service.queries.events import was_told
from service.queries.experiments import phases_of, runs_of

LATE = AlertType.RUN_LATE


def load_late(session: Session) -> list[str]:
    """Return the runs that go on, will miss their deadline at their pace, and were not told of."""
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.RUNNING.value)
    )
    return [
        run.id
        for run, experiment in session.execute(query)
        if _has_deadline(run)
        and not was_told(session, run.experiment, run.id, LATE.value)
        and _told(session, experiment, run) is not None
    ]


def _has_deadline(run: RunRow) -> bool:
    return any(row.get("metric") == Metric.FORECAST_S for row in (run.order or {}).get("gate", ()))


def _told(session: Session, experiment: ExperimentRow, run: RunRow) -> str | None:
    """Return what there is to tell of a run that will be late; None of one that will not."""
    phases, runs = phases_of(session, experiment.id), runs_of(session, experiment.id)
    found = load_forecast(session, experiment, phases, runs)
    if not found.late or found.deadline_s is None or found.step_s is None:
        return None
    return (
        f"{experiment.name}, {run.phase}: at {found.step_s:.3g} s a step the plan's deadline of"
        f" {found.deadline_s:g} s for what comes after this phase cannot be met"
    )


def tell_late(deed: Deed, run: str) -> None:
    """Tell of a run that will be late; unless that was done, or it has ended, since."""
    experiment, row = lock_run(deed, run)
    if row.state != RunState.RUNNING or was_told(deed.session, row.experiment, run, LATE.value):
        return  # another pass was faster
    text = _told(deed.session, experiment, row)
    if text is None:
        return
    record_event(deed, experiment, LATE.value, run=row.id, phase=row.phase, text=text)
    queue_alert(deed, experiment, LATE, with_next(text, f"forecast {experiment.id}"), run=row)


class Deadlines:
    """Tells of runs that will miss their deadline."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Look once at every run that goes on."""
        for run in self._context.store.read(load_late):
            self._context.write(CONDUCTOR, tell_late, run)
