"""Forecasts: how long the rest of an experiment takes, and whether a deadline is met.

The measurements come from one rank of each run. `gonogo.judge.follow_up.forecast` computes.
The label `claimed_seconds` is read from the experiment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gonogo.contract.api import Forecast
from gonogo.contract.criterion import Metric
from gonogo.contract.errors import Rejected
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import Order
from gonogo.goodput.account import RankAccount
from gonogo.judge.follow_up.forecast import (
    Ahead,
    Measured,
    build_forecast,
    measure,
)
from service.db.schema import ExperimentRow, PhaseRow, ProgressRow, RunRow
from service.evidence.lowest_rank import load_account

_WINDOW = 64
_RUNS = 3
_LONGEST_START_S = 7_200.0
_KNOWN_STEPS = 20
"""Steps before a pace can miss a deadline."""
CLAIMED_LABEL = "claimed_seconds"
"""Label that says what somebody promised, shown beside the forecast (R18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Living:
    """The active run, or one that has ended and is not judged yet."""

    row: RunRow
    order: Order | None
    step: int
    heard_at: float | None
    """Time of its newest line, in Unix seconds of its host."""
    told: RankAccount | None
    """What its lowest rank has reported; None: nothing was heard."""
    measured: Measured | None


def check_labels(labels: dict[str, str]) -> None:
    """Refuse a claim that is no number."""
    if CLAIMED_LABEL in labels and _number(labels, CLAIMED_LABEL) is None:
        found = labels[CLAIMED_LABEL]
        raise Rejected(f"label {CLAIMED_LABEL}: found {found!r}; expected a positive number")


def claimed_s(experiment: ExperimentRow) -> float | None:
    """Return the duration that a label claims for the whole experiment; None: no label."""
    return _number(experiment.labels, CLAIMED_LABEL)


def load_forecast(
    session: Session,
    experiment: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: Sequence[RunRow],
) -> Forecast:
    """Return how long the phases that are not over take; `runs` are the oldest first."""
    claimed = claimed_s(experiment)
    if experiment.state == ExperimentState.STOPPING:  # its ranks leave: nobody makes these steps
        return Forecast(basis="it is being stopped", claimed_seconds=claimed)
    living = _load_living(session, runs)
    ahead = [
        _ahead(phase, living)
        for phase in phases
        if phase.state in (PhaseState.PENDING, PhaseState.ACTIVE)
    ]
    ended = [
        known
        for run in runs
        if run.state == RunState.ENDED
        if (known := _measured(run, load_account(session, run.id))) is not None
    ]
    measured = None if living is None else living.measured
    found = build_forecast(ahead, ended[-_RUNS:], measured, claimed_seconds=claimed)
    if found.step_s is None:
        return found
    return found.model_copy(update={} if living is None else _deadline(living))


def _load_living(session: Session, runs: Sequence[RunRow]) -> _Living | None:
    row = next((run for run in runs if run.state != RunState.ENDED), None)
    if row is None and runs and not runs[-1].judged:
        row = runs[-1]
    if row is None:
        return None
    queued = row.state == RunState.QUEUED  # then nothing was heard of it
    progress = None if queued else session.get(ProgressRow, row.id)
    told = None if queued else load_account(session, row.id)
    resumed = row.resume_from.step if row.resume_from else 0
    return _Living(
        row=row,
        order=Order.model_validate(row.order) if row.order else None,
        step=max(resumed, progress.step if progress else 0),
        heard_at=progress.heartbeat_at if progress else None,
        told=told,
        measured=_measured(row, told),
    )


def _measured(run: RunRow, told: RankAccount | None) -> Measured | None:
    if told is None:
        return None
    times_s = list(told.stream.pace.times_s)[-_WINDOW:]
    first, last, mean_s, steps = told.first, told.last, 0.0, 0
    if first is not None and last is not None and told.boots == 1 and last.step > first.step:
        steps = last.step - first.step
        mean_s = (last.at_s - first.at_s) / steps
    return measure(times_s, mean_s, max(steps, len(times_s)), _start_s(run, told))


def _start_s(run: RunRow, told: RankAccount) -> float | None:
    """Return the seconds from a run's claim to the end of its first step.

    The claim was seen by the service's clock, the step by its host's. A figure that only clocks
    which disagree can explain is none.
    """
    if told.first is None or told.first_ts is None or run.claimed_at is None or run.resume_from:
        return None
    start_s = told.first_ts + told.first.at_s - run.claimed_at
    return start_s if 0 < start_s < _LONGEST_START_S else None


def _ahead(phase: PhaseRow, living: _Living | None) -> Ahead:
    if living is None or living.row.phase != phase.name:
        return Ahead(steps=phase.steps)
    left = max(0, phase.steps - living.step)
    if living.told is not None and living.told.first is not None:
        return Ahead(steps=left, begun_s=None)
    claimed, heard = living.row.claimed_at, living.heard_at
    begun_s = 0.0 if claimed is None or heard is None else max(0.0, heard - claimed)
    return Ahead(steps=left, begun_s=begun_s)


def _deadline(living: _Living) -> dict[str, float | bool]:
    """Return what a criterion on `forecast_s` allows, and whether it is missed at this pace.

    It is about the phases that come after the run's own (R18), or about as many steps again where
    none does, as the judge has it.
    """
    order, measured = living.order, living.measured
    limits = [
        bound
        for row in (order.gate if order else [])
        if row.metric == Metric.FORECAST_S
        for bound in [row.fail_above if row.fail_above is not None else row.pass_below]
        if isinstance(bound, float)
    ]
    if order is None or not limits:
        return {}
    steps = sum(phase.steps for phase in order.phases_after) or order.steps or 0
    known = measured is not None and measured.steps >= _KNOWN_STEPS
    late = known and measured is not None and steps * measured.step_s > min(limits)
    return {"deadline_s": min(limits), "late": late}


def _number(labels: dict[str, str], name: str) -> float | None:
    try:
        found = float(labels[name])
    except (KeyError, ValueError):
        return None
    return found if 0 < found < math.inf else None
