"""Which worker takes a plan's runs? And what do they wait for, where none does?"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.plan import Plan
from gonogo.contract.workload import OURS
from gonogo.planning.programs import allows, needs
from service.db.schema import ExperimentRow, WorkerRow
from service.experiments.course import resolved_of

SILENT_S = 30.0
"""A worker that was not heard of for so long takes nothing for now."""


def load_warnings(session: Session, plan: Plan, now: float) -> list[str]:
    """Return why a foreign plan's runs will wait, as the workers are now; none for ours.

    Args:
        session: a transaction.
        plan: what is submitted.
        now: Unix seconds.
    """
    wanted = needs(plan)
    if wanted is None:
        return []
    query = select(WorkerRow).where(WorkerRow.seen_at >= now - SILENT_S)
    claims = [ClaimRequest.model_validate(row.claim) for row in session.scalars(query)]
    if any(allows(plan, row.allow, row.allow_env) for row in claims if not row.draining):
        return []
    return [f"no worker that is up takes it; it waits for one that has {wanted}"]


def load_needs(experiment: ExperimentRow) -> str | None:
    """Return what a worker has to allow for an experiment, in a sentence; None for our workload."""
    workload = experiment.resolved["plan"].get("workload") or {}
    if not workload.get("command") and workload.get("entry") in (None, OURS):
        return None  # most are, and a list of experiments parses no plan for them
    return needs(resolved_of(experiment).parsed())
