"""Which queued runs fit what a worker offers, and which wait for another host?"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Select, or_, select, tuple_
from sqlalchemy.orm import Session

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import GonogoError
from gonogo.contract.lifecycle import RunState
from gonogo.contract.order import MOST_RANKS
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.patch import RecordedPatch
from gonogo.contract.plan import Plan
from gonogo.device_slots import most_ranks
from gonogo.planning.programs import allows, lacks, spans
from service.db.documents import ClaimKept
from service.db.schema import ExperimentRow, RunRow, WorkerRow
from service.experiments.checkpoints import host_of, host_of_origin, is_unfit
from service.experiments.course import gpus_of, patch_of, resolved_of
from service.experiments.hosts import Host, host_of_run
from service.experiments.lifecycle import Deed
from service.experiments.takers import heard
from service.queries.experiments import runs_of

_log = logging.getLogger(__name__)

UNREADABLE = (GonogoError, ValueError, KeyError, TypeError)
"""What making an order of a frozen plan may fail with (a ValidationError is a ValueError)."""
_PAGE = 100
OF_THE_HOST = frozenset({OutcomeCode.PREFLIGHT_FAILED, OutcomeCode.HARDWARE, OutcomeCode.DISK_FULL})
"""Ends that a host may be to blame for."""
OTHER_HOST_S = 60.0
"""How long a retry waits for another host to take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker can take, reduced to what the choice depends on."""

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

        The worker serves its profile, allows its programs, holds all the labels it asks for, and
        its engine starts runs on as many hosts.

        Args:
            plan: the experiment's plan.
            change: the patch under which the run is made; it may ask for other ranks.
            phase: the run's, which may ask for other ranks than the plan; None: the largest.
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
        """How many ranks a run may have that takes a GPU for each: a scheduler finds its own."""
        return most_ranks(self.free) if self.engine is EngineName.LOCAL else MOST_RANKS


def fitting(
    deed: Deed, request: ClaimRequest, unreadable: Callable[[str, Exception], None]
) -> Iterator[str]:
    """Yield the queued runs that fit, oldest first; each is looked at only when asked for.

    What the rows themselves say is asked of the database, so that no number of runs for other
    workers hides one for this.

    Args:
        deed: the transaction.
        request: what the worker says of itself.
        unreadable: called with a run of whose plan nothing can be made, and why.
    """
    offer, host = _offer(request, request.free), Host(request.host, request.machine_id)
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(RunRow.state == RunState.QUEUED.value, *_suits(deed.session, offer))
        .order_by(RunRow.created_at, RunRow.id)
        .limit(_PAGE)
    )
    after: tuple[float, str] | None = None
    while True:
        page = query if after is None else query.where(tuple_(RunRow.created_at, RunRow.id) > after)
        rows = _read(deed.session, page)
        for place, row in rows:
            after = place
            if row is None:
                continue
            run, experiment = row
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
        if len(rows) < _PAGE:
            return


_Place = tuple[float, str]
_Row = tuple[RunRow, ExperimentRow]


def _read(
    session: Session, page: Select[RunRow, ExperimentRow]
) -> list[tuple[_Place, _Row | None]]:
    """Return a page's runs, each with its place in their order; None: one that cannot be read.

    A run that a later release wrote is left for one that can read it, and stops nobody else's.
    """
    try:
        return [((run.created_at, run.id), (run, row)) for run, row in session.execute(page)]
    except UNREADABLE:
        pass  # one of them: which?
    found: list[tuple[_Place, _Row | None]] = []
    places = page.with_only_columns(RunRow.created_at, RunRow.id, maintain_column_froms=True)
    for created_at, run in session.execute(places).all():
        one = page.where(RunRow.id == run)
        try:
            read, experiment = session.execute(one).one()
            row: _Row | None = (read, experiment)
        except UNREADABLE as error:
            _log.error("%s cannot be read here: %r", run, error, extra={"action": "run_unreadable"})
            row = None
        found.append(((created_at, run), row))
    return found


def _suits(session: Session, offer: Offer) -> Iterator[ColumnElement[bool]]:
    """Yield what a run's row must say, or not say, to suit an offer."""
    yield or_(RunRow.labels.is_(None), RunRow.labels.in_(_held(session, offer.labels)))
    yield or_(RunRow.gpus.is_(None), RunRow.gpus <= offer.gpus)
    if offer.profiles:
        yield or_(RunRow.profile.is_(None), RunRow.profile.in_(offer.profiles))
    if not offer.allow:
        yield or_(RunRow.foreign.is_(None), RunRow.foreign.is_(False))


def _held(session: Session, labels: Mapping[str, str]) -> list[str]:
    """Return which sets of labels that queued runs ask for these hold; there are few sets."""
    query = select(RunRow.labels).where(
        RunRow.state == RunState.QUEUED.value, RunRow.labels.is_not(None)
    )
    asked = [text for text in session.scalars(query.distinct()) if text is not None]
    return [text for text in asked if json.loads(text).items() <= labels.items()]


def _belongs_elsewhere(deed: Deed, experiment: ExperimentRow, host: Host) -> bool:
    """Say whether a campaign's run waits for the host of its campaign's other runs.

    Runs are compared on one host; only where no worker of it lives any more another may go on.
    """
    if experiment.campaign is None:
        return False
    query = (
        select(RunRow.host, RunRow.machine)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(ExperimentRow.campaign == experiment.campaign, RunRow.host.is_not(None))
        .order_by(RunRow.claimed_at.desc())
        .limit(1)
    )
    found = deed.session.execute(query).first()
    if found is None or found.host is None:
        return False
    theirs = Host(found.host, found.machine)
    return not theirs.is_same(host) and any(_living_at(deed, theirs))


def _begins_elsewhere(
    deed: Deed,
    experiment: ExperimentRow,
    run: RunRow,
    host: Host,
    plan: Plan,
    change: RecordedPatch | None,
) -> bool:
    """Say whether a run waits for the host that wrote the checkpoint it goes on from.

    It does while a worker of that host lives that could ever take it, and the host was not found
    unfit for the phase. Another host, where they share no file system, would not have it.
    """
    if run.resume_from is None:
        return False
    attempts = runs_of(deed.session, run.experiment)
    theirs = host_of(run.resume_from, attempts) or host_of_origin(experiment)
    if theirs is None or theirs.is_same(host):
        return False
    there = [row for row in attempts if row.phase == run.phase and _ran_at(row, theirs)]
    if any(map(is_unfit, there)):
        return False
    return _takes(_living_at(deed, theirs), run, plan, change)


def _is_tried_elsewhere(
    deed: Deed, run: RunRow, host: Host, plan: Plan, change: RecordedPatch | None
) -> bool:
    """Say whether a retry waits a while for another host than the one that may be to blame.

    Not asked of a run that goes on from a checkpoint, which may be on this host's disk alone.
    """
    if run.attempt == 1 or run.resume_from is not None:
        return False
    if deed.now - run.created_at > OTHER_HOST_S or not _failed_on(deed.session, run, host):
        return False
    others = (row for row in _living(deed) if not _is_at(row, host))
    return _takes(others, run, plan, change)


def _failed_on(session: Session, run: RunRow, host: Host) -> bool:
    """Say whether the attempt before failed on this host, by what may be the host's fault."""
    query = select(RunRow.host, RunRow.machine, RunRow.outcome).where(
        RunRow.experiment == run.experiment,
        RunRow.phase == run.phase,
        RunRow.attempt == run.attempt - 1,
    )
    before = session.execute(query).first()
    if before is None or before.host is None:
        return False
    if not Host(before.host, before.machine).is_same(host):
        return False
    return before.outcome is not None and before.outcome.code in OF_THE_HOST


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


def _living_at(deed: Deed, host: Host) -> Iterator[WorkerRow]:
    """Yield those of one host."""
    return (row for row in _living(deed) if _is_at(row, host))


def _is_at(worker: WorkerRow, host: Host) -> bool:
    return Host(worker.host, worker.machine).is_same(host)


def _ran_at(run: RunRow, host: Host) -> bool:
    found = host_of_run(run)
    return found is not None and found.is_same(host)


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
