"""How does a run look from outside? With what telemetry said last, what was found and decided."""

import json
from typing import Any

from gonogo.contract.api import RunView
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import ResumePoint
from gonogo.contract.outcome import Outcome
from service.db.schema import DecisionRow, FindingRow, ProgressRow, RunRow
from service.instants import instant, stamp


def view_run(row: RunRow, progress: ProgressRow) -> RunView:
    """Return a run with what telemetry said last."""
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
        outcome=Outcome.model_validate(row.outcome) if row.outcome else None,
        verdict=row.verdict,
        worker=row.worker,
        step=progress.step,
        steps=steps,
        init_from=(row.order or {}).get("init_from"),
        resume_from=ResumePoint.model_validate(row.resume_from) if row.resume_from else None,
        loss=float(progress.loss) if progress.loss is not None else None,
        toks_per_s=progress.toks_per_s,
        last_heartbeat_at=instant(progress.heartbeat_at),
        identity=Identity.model_validate(identity) if identity else None,
        dir=row.dir,
        host=row.host,
        created_at=stamp(row.created_at),
        started_at=instant(row.started_at),
        ended_at=instant(row.ended_at),
    )


def view_decision(row: DecisionRow) -> dict[str, Any]:
    """Return a decision's document as it was recorded, so that its digests hold anywhere."""
    found: dict[str, Any] = json.loads(row.document)
    return found


def view_finding(row: FindingRow) -> Finding:
    """Return a finding as it was recorded."""
    return Finding.model_validate_json(row.document)
