"""What does a run wait for before its first step? A sentence for each such state."""

from datetime import datetime

from gonogo.cli.output import duration
from gonogo.contract.api import RunView
from gonogo.contract.lifecycle import RunState

_STAGES = {
    RunState.QUEUED: "in the queue",
    RunState.CLAIMED: "{worker} prepares the run directory",
    RunState.PREFLIGHT: "{worker} checks the host and its devices",
    RunState.STARTING: "it imports and builds the model, and begins when every rank is there",
}


def stage_of(run: RunView, now: datetime) -> str | None:
    """Return what a run is at that has not made a step yet, and for how long; else None."""
    text = _STAGES.get(run.state)
    if text is None:
        return None
    age_s = (now - datetime.fromisoformat(run.created_at)).total_seconds()
    said = text.format(worker=run.worker or "a worker")
    return f"{said} ({duration(max(0.0, age_s))} since it was queued)"
