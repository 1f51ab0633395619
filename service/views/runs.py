"""Runs as REST shows them, with their last telemetry."""

import json
from typing import Any

from gonogo.contract.api import RunView
from gonogo.contract.heartbeat import Identity
from service.db.schema import DecisionRow, ProgressRow, RunRow
from service.db.store import Session
from service.experiments.workers import ran_on
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
