"""Placement: which queued runs fit a worker's offer, and which wait for another host."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, or_, select, tuple_
from sqlalchemy.orm import Session

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import GonogoError
from gonogo.contract.lifecycle import RunState
from gonogo.contract.order import MOST_RANKS
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.contract.workload import RecordedPatch
from gonogo.device_slots import most_ranks
from gonogo.planning.programs import allows, lacks, spans
from service.db.documents import ClaimKept
from service.db.schema import ExperimentRow, RunRow, WorkerRow
from service.experiments.advance import gpus_of, patch_of, resolved_of
from service.experiments.checkpoints import host_of, host_of_origin, is_unfit
from service.experiments.lifecycle import Deed
from service.experiments.workers import Host, heard, host_of_run
from service.queries.experiments import runs_of

UNREADABLE = (GonogoError, ValueError, KeyError, TypeError)
"""Errors of making an order from a frozen plan."""
_PAGE = 100
OF_THE_HOST = frozenset({OutcomeCode.PREFLIGHT_FAILED, OutcomeCode.HARDWARE, OutcomeCode.DISK_FULL})
"""Ends for which the host may be to blame."""
OTHER_HOST_S = 60.0
"""How long a retry waits for another host to take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker can take."""

    free: tuple[str, ...]
    profiles: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    engine: EngineName = EngineName.LOCAL

    def fits(
        self, plan: Plan, change: RecordedPatch | None = None, phase: str | None = None
    ) -> bool:
        """Say whether a run of this plan fits: a device for each rank, or one slot on a CPU.

        Args:
            plan: the experiment's plan.
            change: the patch of the run, which may change the number of ranks.
            phase: the run's, which may have its own number of ranks; None: the largest.
        """
        if self.profiles and plan.profile not in self.profiles:
            return False
        if lacks(plan, self.labels) or not allows(plan, self.allow, self.allow_env):
            return False
        if not spans(plan, self.engine):
            return False
        return bool(self.free) and self.gpus >= gpus_of(plan, change, phase)

    @property
    def gpus(self) -> int:
        """The largest number of GPU ranks; a scheduler finds its own."""
        return most_ranks(self.free) if self.engine is EngineName.LOCAL else MOST_RANKS


def fitting(
    deed: Deed, request: ClaimRequest, unreadable: Callable[[str, Exception], None]
) -> Iterator[str]:
    """Yield the queued runs that fit, oldest first; each is looked at only when asked for.

    Args:
        deed: the transaction.
        request: what the worker says of itself.
        unreadable: called with a run whose plan cannot be read, and the error.
    """
    offer, host = _offer(request, request.free), Host(request.host, request.machine_id)
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.QUEUED.value, *_suits(deed.session, offer))
        .order_by(RunRow.created_at, RunRow.id)
        .limit(_PAGE)
    )
    page = query
    while rows := deed.session.execute(page).all():
        after = rows[-1][0].created_at, rows[-1][0].id
        for run, experiment in rows:
            try:
                plan, change = resolved_of(experiment).parsed(), patch_of(run.change, run.carried)
                fits = offer.fits(plan, change, run.phase)
            except UNREADABLE as error:
                unreadable(run.id, error)
                continue
            if fits and not (
                _belongs_elsewhere(deed, experiment, host)
                or _begins_elsewhere(deed, experiment, run, host, plan, change)
                or _is_tried_elsewhere(deed, run, host, plan, change)
            ):
                yield run.id
        page = query.where(tuple_(RunRow.created_at, RunRow.id) > after)


def _suits(session: Session, offer: Offer) -> Iterator[ColumnElement[bool]]:
    """Yield what a run's row must say to suit an offer, so that other runs are not loaded."""
    yield or_(RunRow.labels.is_(None), RunRow.labels.in_(_held(session, offer.labels)))
    yield RunRow.gpus <= offer.gpus
    if offer.profiles:
        yield RunRow.profile.in_(offer.profiles)
    if not offer.allow:
        yield RunRow.foreign.is_(False)


def _held(session: Session, labels: Mapping[str, str]) -> list[str]:
    """Return the sets of labels of queued runs that these labels satisfy."""
    query = select(RunRow.labels).where(
        RunRow.state == RunState.QUEUED.value, RunRow.labels.is_not(None)
    )
    asked = [text for text in session.scalars(query.distinct()) if text is not None]
    return [text for text in asked if json.loads(text).items() <= labels.items()]


def _belongs_elsewhere(deed: Deed, experiment: ExperimentRow, host: Host) -> bool:
    """Say whether a campaign's run waits for the living host of the campaign's other runs."""
    if experiment.campaign is None:
        return False
    query = (
        select(RunRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(ExperimentRow.campaign == experiment.campaign, RunRow.host.is_not(None))
        .order_by(RunRow.claimed_at.desc())
        .limit(1)
    )
    last = deed.session.scalars(query).first()
    theirs = None if last is None else host_of_run(last)
    if theirs is None or theirs.is_same(host):
        return False
    return any(_is_at(row, theirs) for row in _living(deed))


def _begins_elsewhere(
    deed: Deed,
    experiment: ExperimentRow,
    run: RunRow,
    host: Host,
    plan: Plan,
    change: RecordedPatch | None,
) -> bool:
    """Say whether a run waits for the host that wrote the checkpoint from which it resumes.

    A living worker of that host must be able to take the run, and the host must not have been found
    unfit for the phase.
    """
    if run.resume_from is None:
        return False
    attempts = runs_of(deed.session, run.experiment)
    theirs = host_of(run.resume_from, attempts) or host_of_origin(experiment)
    if theirs is None or theirs.is_same(host):
        return False
    for row in attempts:
        ran_at = host_of_run(row)
        if row.phase == run.phase and ran_at and ran_at.is_same(theirs) and is_unfit(row):
            return False
    there = (row for row in _living(deed) if _is_at(row, theirs))
    return _takes(there, run, plan, change)


def _is_tried_elsewhere(
    deed: Deed, run: RunRow, host: Host, plan: Plan, change: RecordedPatch | None
) -> bool:
    """Say whether a retry still waits for another host than the one that may be to blame."""
    if run.attempt == 1 or run.resume_from is not None:
        return False
    if deed.now - run.created_at > OTHER_HOST_S:
        return False
    attempts = runs_of(deed.session, run.experiment, run.phase)
    before = next((row for row in attempts if row.attempt == run.attempt - 1), None)
    theirs = None if before is None else host_of_run(before)
    if before is None or theirs is None or not theirs.is_same(host):
        return False
    if before.outcome is None or before.outcome.code not in OF_THE_HOST:
        return False
    others = (row for row in _living(deed) if not _is_at(row, host))
    return _takes(others, run, plan, change)


def _takes(
    workers: Iterable[WorkerRow], run: RunRow, plan: Plan, change: RecordedPatch | None
) -> bool:
    """Say whether one of these workers could take a run with all its devices."""
    offers = (_offer(row.claim, row.claim.devices) for row in workers)
    return any(offer.fits(plan, change, run.phase) for offer in offers)


def _living(deed: Deed) -> Iterator[WorkerRow]:
    """Yield the workers that were heard lately and take runs."""
    query = select(WorkerRow).where(heard(deed.now), WorkerRow.draining.is_(False))
    yield from deed.session.scalars(query)


def _is_at(worker: WorkerRow, host: Host) -> bool:
    return Host(worker.host, worker.machine).is_same(host)


def _offer(request: ClaimRequest | ClaimKept, devices: Iterable[str]) -> Offer:
    """Return what a worker takes with these devices."""
    return Offer(
        free=tuple(devices),
        profiles=tuple(request.profiles),
        allow=tuple(request.allow),
        allow_env=tuple(request.allow_env),
        labels=request.labels,
        engine=request.engine,
    )
