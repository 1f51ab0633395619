"""Workers and hosts, as experiments see them: who takes a plan's runs, and where a run is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from gonogo.contract.lifecycle import RunState
from gonogo.contract.plan import Plan
from gonogo.contract.worker_messages import ClaimRequest
from gonogo.contract.workload import EngineName
from gonogo.device_slots import gpus_of as slot_gpus
from gonogo.planning.programs import allows, lacks, needs, spans
from service.db.schema import RunRow, WorkerRow
from service.experiments.advance import gpus_of
from service.queries.callers import load_workers, load_workers_named

SILENT_S = 30.0
"""A worker that was silent for longer takes nothing for now."""
NOT_BEGUN = (RunState.CLAIMED, RunState.PREFLIGHT)


@dataclass(frozen=True, slots=True)
class Host:
    """A host by its name and its machine id; either alone may be shared by several hosts."""

    name: str
    machine: str | None = None

    def is_same(self, other: "Host") -> bool:
        """Say whether two are one host; by name alone if one machine is unknown."""
        unknown = self.machine is None or other.machine is None
        return self.name == other.name and (unknown or self.machine == other.machine)


def host_of_run(run: RunRow) -> Host | None:
    """Return the host whose worker claimed a run; None if none has."""
    return None if run.host is None else Host(run.host, run.machine)


def ran_on(run: RunRow) -> str | None:
    """Return the name of a run's host, the first node's for a scheduler's run."""
    return (run.preflight or {}).get("host") or run.host


def hosts_of(run: RunRow) -> str:
    """Return where a run is, in words: its first host, and how many more there are."""
    more = int((run.order or {}).get("nodes", 1)) - 1
    first = f"host {ran_on(run)}"
    return first if more < 1 else f"{first} (and {more} more)"


def is_heard(row: WorkerRow, now: float) -> bool:
    """Say whether a worker was heard lately; a time far in the future does not count."""
    return abs(now - row.seen_at) <= SILENT_S


def heard(now: float) -> ColumnElement[bool]:
    """Return `is_heard` as a condition of a query."""
    return WorkerRow.seen_at.between(now - SILENT_S, now + SILENT_S)


def load_warnings(session: Session, plan: Plan, now: float) -> list[str]:
    """Return why a plan's runs will wait, as the workers are now."""
    wanted, gpus = needs(plan), gpus_of(plan)
    if wanted is None and not gpus:
        return []
    workers = load_workers(session)
    up = [row.claim for row in workers if is_heard(row, now)]
    if wanted is None:
        if not up or any(has_gpus(said, said.devices, plan, gpus) for said in up):
            return []
        count = f"{gpus} GPU{'s' * (gpus != 1)}"
        return [f"no worker that is up has {count} of profile {plan.profile}; it waits for one"]
    if any(not said.draining and may_take(said, plan) for said in up):
        return []
    return [f"no worker that is up takes it; it waits for one that has {wanted}"]


def has_gpus(said: ClaimRequest, devices: Sequence[str], plan: Plan, gpus: int) -> bool:
    """Say whether so many GPUs are among a worker's devices; a scheduler finds its own."""
    if said.profiles and plan.profile not in said.profiles:
        return False
    return said.engine is not EngineName.LOCAL or len(slot_gpus(devices)) >= gpus


def load_waits(session: Session, runs: Iterable[RunRow]) -> dict[str, str]:
    """Return run → what it waits for, in the words of its scheduler."""
    still = [run for run in runs if run.worker and (run.state != RunState.ENDED or run.lost)]
    named = {run.worker for run in still if run.worker}
    workers = {row.name: row for row in load_workers_named(session, named)}
    waits = {}
    for run in still:
        worker = workers.get(run.worker or "")
        if worker is None:
            continue
        trains = run.state == RunState.RUNNING and worker.seen_at <= (run.started_at or 0.0)
        if run.lost or not trains:
            waits[run.id] = worker.claim.waits.get(run.id)
    return {run: text for run, text in waits.items() if text}


def may_take(said: ClaimRequest, plan: Plan) -> bool:
    """Say whether a worker holds and allows what a plan needs."""
    allowed = not lacks(plan, said.labels) and allows(plan, said.allow, said.allow_env)
    return allowed and spans(plan, said.engine)
