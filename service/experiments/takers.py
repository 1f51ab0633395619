"""Which worker takes a plan's runs? And what do they wait for, where none does?"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.plan import Plan
from gonogo.planning.programs import allows, label_text, lacks, needs, spans
from service.db.schema import WorkerRow

SILENT_S = 30.0
"""A worker that was not heard of for so long takes nothing for now."""
FORGOTTEN_S = 3600.0
"""One of which nothing was heard for so long is not waited for."""


def load_warnings(session: Session, plan: Plan, now: float) -> list[str]:
    """Return why a plan's runs will wait that not every worker takes, as the workers are now.

    A label that it asks for and that none of those up holds is named.

    Args:
        session: a transaction.
        plan: what is submitted.
        now: Unix seconds.
    """
    wanted = needs(plan)
    if wanted is None:
        return []
    claims = _claims(session)
    takers = [row for row, said in claims if _takes(said, plan)]
    if takers and now - takers[0].seen_at <= SILENT_S:
        return []
    silent_s = now - takers[0].seen_at if takers else FORGOTTEN_S
    if silent_s < FORGOTTEN_S:
        return [f"worker {takers[0].name} takes it, but was not heard of for {silent_s:.0f} s"]
    up = [said for row, said in claims if now - row.seen_at <= SILENT_S]
    if not up:
        return [f"no worker is up yet; it waits for one that has {wanted}"]
    text = f"no worker that is up takes it; it waits for one that has {wanted}"
    unheld = {
        name: value
        for name, value in plan.workload.labels.items()
        if all(name in lacks(plan, said.labels) for said in up)
    }
    return [f"{text} (none has {label_text(unheld)})" if unheld else text]


def load_taker(session: Session, plan: Plan) -> str | None:
    """Return the worker heard of last that takes a plan's runs once it has free devices, if any."""
    return next((row.name for row, said in _claims(session) if _takes(said, plan)), None)


def _claims(session: Session) -> list[tuple[WorkerRow, ClaimRequest]]:
    """Return the workers and what each said last, newest first."""
    rows = session.scalars(select(WorkerRow).order_by(WorkerRow.seen_at.desc()))
    return [(row, ClaimRequest.model_validate(row.claim)) for row in rows]


def _takes(said: ClaimRequest, plan: Plan) -> bool:
    return (
        not said.draining
        and not lacks(plan, said.labels)
        and allows(plan, said.allow, said.allow_env)
        and spans(plan, said.engine)
    )
