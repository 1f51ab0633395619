"""How long does the rest of an experiment take? Measured pace times the steps that are left."""

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.api import Forecast
from gonogo.contract.facts import Facts
from gonogo.contract.heartbeat import Msg
from gonogo.contract.lifecycle import PhaseState, RunState
from gonogo.judge.course.forecast import build_forecast as build_from_facts
from gonogo.judge.course.forecast import build_live_forecast
from service.db.schema import (
    AssessmentRow,
    ExperimentRow,
    HeartbeatRow,
    PhaseRow,
    ProgressRow,
    RunRow,
)

_WINDOW = 64
CLAIMED_LABEL = "claimed_seconds"
"""Label that says what somebody promised, shown beside the forecast (R18)."""


def build_forecast(
    session: Session,
    experiment: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: Sequence[RunRow],
) -> Forecast:
    """Return the forecast from the living run's pace, or from that of the last one that ended."""
    living = next((run for run in runs if run.state != RunState.ENDED), None)
    done = session.get(ProgressRow, living.id) if living is not None else None
    left = sum(
        phase.steps for phase in phases if phase.state in (PhaseState.PENDING, PhaseState.ACTIVE)
    ) - (done.step if done else 0)
    claimed = _claimed(experiment)
    if living is not None:
        gaps = _step_gaps(session, living.id)
        if len(gaps) >= 3:
            return build_live_forecast(
                step_s=statistics.median(gaps),
                steps_left=left,
                measured_steps=len(gaps),
                claimed_seconds=claimed,
            )
    for run in reversed(runs):
        facts = session.scalars(
            select(AssessmentRow.facts).where(AssessmentRow.run == run.id)
        ).first()
        found = facts and build_from_facts(
            [Facts.model_validate_json(facts)], steps_left=left, claimed_seconds=claimed
        )
        if found and found.seconds_p50 is not None:
            return found
    return Forecast(claimed_seconds=claimed)


def _step_gaps(session: Session, run: str) -> list[float]:
    """Return the seconds between the last steps' ends on rank 0."""
    query = (
        select(HeartbeatRow.line)
        .where(
            HeartbeatRow.run == run, HeartbeatRow.rank == 0, HeartbeatRow.msg == Msg.STEP_END.value
        )
        .order_by(HeartbeatRow.n.desc())
        .limit(_WINDOW + 1)
    )
    stamps = [float(json.loads(line)["mono"]) for line in session.scalars(query)]
    return [late - early for late, early in pairwise(stamps) if late > early]


def _claimed(experiment: ExperimentRow) -> float | None:
    try:
        return float(experiment.labels[CLAIMED_LABEL])
    except (KeyError, ValueError):
        return None
