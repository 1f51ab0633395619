"""Placement: which queued runs fit a worker's offer, and which wait for another host."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, select, tuple_

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.errors import GonogoError
from gonogo.contract.lifecycle import RunState
from gonogo.contract.order import MOST_RANKS
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.contract.workload import EngineName, RecordedPatch
from gonogo.device_slots import gpus_of as slot_gpus
from gonogo.planning.programs import allows, lacks, spans
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
OTHER_HOST_S = 60.0


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
        """Say whether a run fits: a device for each rank, or one slot on a CPU."""
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
        return len(slot_gpus(self.free)) if self.engine is EngineName.LOCAL else MOST_RANKS

    def rows(self) -> Iterator[ColumnElement[bool]]:
        """Yield what a run's row must say to fit, so that other runs are not loaded."""
        yield RunRow.gpus <= self.gpus
        if self.profiles:
            yield RunRow.profile.in_(self.profiles)
        if not self.allow:
            yield RunRow.foreign.is_(False)


def fitting(deed: Deed, request: ClaimRequest) -> Iterator[str]:
    """Yield the queued runs that fit, and those whose plan cannot be read, oldest first."""
    offer, host = _offer(request, request.free), Host(request.host, request.machine_id)
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.QUEUED.value, *offer.rows())
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
            except UNREADABLE:
                yield run.id
                continue
            if fits and not any(
                other.fits(plan, change, run.phase)
                for other in _preferred(deed, experiment, run, host)
            ):
                yield run.id
        page = query.where(tuple_(RunRow.created_at, RunRow.id) > after)


def _preferred(deed: Deed, experiment: ExperimentRow, run: RunRow, host: Host) -> Iterator[Offer]:
    """Yield the offers of living workers for which a run waits rather than run on this host.

    A campaign's runs stay on one host. A run that resumes goes to the host of its checkpoint,
    unless that was unfit. A retry tries another host for a while.
    """
    theirs = _campaign_host(deed, experiment)
    if theirs is None and run.resume_from is not None:
        theirs = _checkpoint_host(deed, experiment, run)
    if theirs is not None:
        if not theirs.is_same(host):
            yield from (_whole_offer(row) for row in _living(deed) if _is_at(row, theirs))
    elif _failed_here(deed, run, host):
        yield from (_whole_offer(row) for row in _living(deed) if not _is_at(row, host))


def _campaign_host(deed: Deed, experiment: ExperimentRow) -> Host | None:
    if experiment.campaign is None:
        return None
    query = (
        select(RunRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(ExperimentRow.campaign == experiment.campaign, RunRow.host.is_not(None))
        .order_by(RunRow.claimed_at.desc())
        .limit(1)
    )
    last = deed.session.scalars(query).first()
    return None if last is None else host_of_run(last)


def _checkpoint_host(deed: Deed, experiment: ExperimentRow, run: RunRow) -> Host | None:
    if run.resume_from is None:
        return None
    attempts = runs_of(deed.session, run.experiment)
    theirs = host_of(run.resume_from, attempts) or host_of_origin(experiment)
    for row in attempts:
        ran_at = host_of_run(row)
        here = theirs and ran_at and ran_at.is_same(theirs)
        if here and row.phase == run.phase and is_unfit(row):
            return None
    return theirs


def _failed_here(deed: Deed, run: RunRow, host: Host) -> bool:
    """Say whether a fresh retry follows an attempt for which this host may be to blame."""
    if run.attempt == 1 or run.resume_from or deed.now - run.created_at > OTHER_HOST_S:
        return False
    attempts = runs_of(deed.session, run.experiment, run.phase)
    before = next((row for row in attempts if row.attempt == run.attempt - 1), None)
    theirs = None if before is None else host_of_run(before)
    if before is None or before.outcome is None or theirs is None or not theirs.is_same(host):
        return False
    return before.outcome.code in OF_THE_HOST


def _living(deed: Deed) -> Iterator[WorkerRow]:
    query = select(WorkerRow).where(heard(deed.now), WorkerRow.draining.is_(False))
    yield from deed.session.scalars(query)


def _is_at(worker: WorkerRow, host: Host) -> bool:
    return Host(worker.host, worker.machine).is_same(host)


def _whole_offer(worker: WorkerRow) -> Offer:
    return _offer(worker.claim, worker.claim.devices)


def _offer(request: ClaimRequest, devices: Iterable[str]) -> Offer:
    return Offer(
        free=tuple(devices),
        profiles=tuple(request.profiles),
        allow=tuple(request.allow),
        allow_env=tuple(request.allow_env),
        labels=request.labels,
        engine=request.engine,
    )
