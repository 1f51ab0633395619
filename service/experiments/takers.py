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
FORGOTTEN_S = 3600.0
"""One of which nothing was heard for so long is not waited for."""


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
    rows = session.scalars(select(WorkerRow).order_by(WorkerRow.seen_at.desc()))
    claims = [(row, ClaimRequest.model_validate(row.claim)) for row in rows]
    takers = [
        row
        for row, said in claims
        if not said.draining and allows(plan, said.allow, said.allow_env)
    ]
    if takers and now - takers[0].seen_at <= SILENT_S:
        return []
    silent_s = now - takers[0].seen_at if takers else FORGOTTEN_S
    if silent_s < FORGOTTEN_S:
        return [f"worker {takers[0].name} takes it, but was not heard of for {silent_s:.0f} s"]
    if not any(now - row.seen_at <= SILENT_S for row, _ in claims):
        return [f"no worker is up yet; it waits for one that has {wanted}"]
    return [f"no worker that is up takes it; it waits for one that has {wanted}"]


def load_needs(experiment: ExperimentRow) -> str | None:
    """Return what a worker has to allow for an experiment, in a sentence; None for our workload."""
    workload = experiment.resolved["plan"].get("workload") or {}
    if not workload.get("command") and workload.get("entry") in (None, OURS):
        return None  # most are, and a list of experiments parses no plan for them
    return needs(resolved_of(experiment).parsed())
