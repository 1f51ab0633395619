"""Which worker takes a plan's runs? And what do they wait for, where none does?"""

from collections.abc import Iterable

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from gonogo.contract.cluster import EngineName
from gonogo.contract.lifecycle import RunState
from gonogo.contract.plan import Plan
from gonogo.device_slots import most_ranks
from gonogo.planning.programs import allows, label_text, lacks, needs, spans, up_line
from service.db.documents import ClaimKept
from service.db.schema import RunRow, WorkerRow
from service.experiments.course import gpus_of
from service.queries.workers import load_workers, load_workers_named

SILENT_S = 30.0
"""A worker that was not heard of for so long takes nothing for now."""
NOT_BEGUN = (RunState.CLAIMED, RunState.PREFLIGHT)
FORGOTTEN_S = 3600.0
"""One of which nothing was heard for so long is not waited for."""


def is_heard(row: WorkerRow, now: float) -> bool:
    """Say whether a worker was heard of lately; `now` in Unix seconds.

    One that was heard of in a time to come was heard before the clock was set back: it lives if it
    is heard again.
    """
    return abs(now - row.seen_at) <= SILENT_S


def heard(now: float) -> ColumnElement[bool]:
    """Return the same as a condition of a query."""
    return WorkerRow.seen_at.between(now - SILENT_S, now + SILENT_S)


def load_warnings(session: Session, plan: Plan, now: float) -> list[str]:
    """Return why a plan's runs will wait that not every worker takes, as the workers are now.

    GPUs that none of those up has are named, and so is a label that none of them holds.

    Args:
        session: a transaction.
        plan: what is submitted.
        now: Unix seconds.
    """
    wanted, gpus = needs(plan), gpus_of(plan)
    if wanted is None and not gpus:
        return []
    workers = load_workers(session)
    if wanted is None:
        return _without_gpus(workers, plan, gpus, now)
    takers = [row for row in workers if _takes(row.claim, plan)]
    if any(is_heard(row, now) for row in takers):
        return []
    last = next((row for row in takers if row.seen_at <= now), None)
    if last is not None and (silent_s := now - last.seen_at) < FORGOTTEN_S:
        return [f"worker {last.name} takes it, but was not heard of for {silent_s:.0f} s"]
    up = [row.claim for row in workers if is_heard(row, now)]
    line = up_line(plan)
    typed = "" if line is None else f"; with a local stack type: {line}"
    if not up:
        return [f"no worker is up yet; it waits for one that has {wanted}{typed}"]
    text = f"no worker that is up takes it; it waits for one that has {wanted}"
    unheld = {
        name: value
        for name, value in plan.workload.labels.items()
        if all(name in lacks(plan, said.labels) for said in up)
    }
    return [f"{text} (none has {label_text(unheld)})" if unheld else f"{text}{typed}"]


def _without_gpus(workers: Iterable[WorkerRow], plan: Plan, gpus: int, now: float) -> list[str]:
    """Return that none of the workers that are up has the GPUs of a plan, where that is so."""
    up = [row.claim for row in workers if is_heard(row, now)]
    if not up or any(_has_gpus(said, plan, gpus) for said in up):
        return []
    count = f"{gpus} GPU{'s' * (gpus != 1)}"
    return [f"no worker that is up has {count} of profile {plan.profile}; it waits for one"]


def _has_gpus(said: ClaimKept, plan: Plan, gpus: int) -> bool:
    """Say whether a worker has so many, free or not; a scheduler finds its own."""
    if said.profiles and plan.profile not in said.profiles:
        return False
    return said.engine is not EngineName.LOCAL or most_ranks(said.devices) >= gpus


def load_taker(session: Session, plan: Plan) -> str | None:
    """Return the worker heard of last that takes a plan's runs once it has free devices, if any."""
    return next((row.name for row in load_workers(session) if _takes(row.claim, plan)), None)


def load_waits(session: Session, runs: Iterable[RunRow]) -> dict[str, str]:
    """Return run → for what it waits, or why nothing is heard of it, in its engine's words."""
    still = [run for run in runs if run.worker and (run.state != RunState.ENDED or run.lost)]
    named = {run.worker for run in still if run.worker}
    workers = {row.name: row for row in load_workers_named(session, named)}
    waits = {}
    for run in still:
        worker = workers.get(run.worker or "")
        if worker is not None and (run.lost or not _trains_since(run, worker)):
            waits[run.id] = worker.claim.waits.get(run.id)
    return {run: text for run, text in waits.items() if text}


def _trains_since(run: RunRow, worker: WorkerRow) -> bool:
    """Say whether a run has begun to train after what its worker said last."""
    return run.state == RunState.RUNNING and worker.seen_at <= (run.started_at or 0.0)


def _takes(said: ClaimKept, plan: Plan) -> bool:
    return (
        not said.draining
        and not lacks(plan, said.labels)
        and allows(plan, said.allow, said.allow_env)
        and spans(plan, said.engine)
    )
