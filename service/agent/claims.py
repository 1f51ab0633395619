"""Claims: a worker offers free devices and gets the oldest queued run that fits, exactly once.

A run that this worker claimed and does not know of is given out again under a higher token and a
new secret, which each message about it brings. A new boot id of the same machine proves that
everything it ran before is dead, except runs of a scheduler. A silent worker keeps its runs.
"""

import hashlib
import hmac
import re
import secrets
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from gonogo.contract.errors import Conflict, GonogoError, NameTaken, NotAllowed, StaleToken
from gonogo.contract.lifecycle import ExperimentEvent, ExperimentState, RunEvent, RunState
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.contract.worker_messages import CLAIM_HEADER, ClaimRequest
from gonogo.contract.workload import EngineName, RecordedPatch
from gonogo.device_slots import gpus_of as slot_gpus
from gonogo.planning.resolve import build_order
from service.db.columns import is_by_service
from service.db.schema import ExperimentRow, KeyRow, ProgressRow, RunRow, WorkerRow
from service.db.store import insert_if_new
from service.experiments.advance import end_without_worker, gpus_of, patch_of, resolved_of
from service.experiments.checkpoints import host_of, host_of_origin, is_unfit, taints_of
from service.experiments.lifecycle import (
    Deed,
    lock_run,
    move_experiment,
    move_run,
    record_event,
)
from service.experiments.workers import (
    NOT_BEGUN,
    Host,
    has_gpus,
    heard,
    host_of_run,
    is_heard,
    may_take,
)
from service.queries.callers import load_living_keys_of, lock_living_keys
from service.queries.experiments import runs_of
from service.queries.runs import load_runs_of_worker

UNREADABLE = (GonogoError, ValueError, KeyError, TypeError)
"""Errors of making an order from a frozen plan."""
_PAGE = 100
OF_THE_HOST = frozenset({OutcomeCode.PREFLIGHT_FAILED, OutcomeCode.HARDWARE, OutcomeCode.DISK_FULL})
OTHER_HOST_S = 60.0


def fits(
    said: ClaimRequest,
    devices: Sequence[str],
    plan: Plan,
    change: RecordedPatch | None = None,
    phase: str | None = None,
) -> bool:
    """Say whether a run fits devices of a worker: one for each rank, or one slot on a CPU."""
    gpus = gpus_of(plan, change, phase)
    return bool(devices) and may_take(said, plan) and has_gpus(said, devices, plan, gpus)


def fitting(deed: Deed, request: ClaimRequest) -> Iterator[str]:
    """Yield the queued runs that fit, and those whose plan cannot be read, oldest first."""
    host, wanted = Host(request.host, request.machine_id), [RunRow.state == RunState.QUEUED.value]
    if request.engine is EngineName.LOCAL:
        wanted.append(RunRow.gpus <= len(slot_gpus(request.free)))
    if request.profiles:
        wanted.append(RunRow.profile.in_(request.profiles))
    if not request.allow:
        wanted.append(RunRow.foreign.is_(False))
    query = (
        select(RunRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == RunRow.experiment)
        .where(*wanted)  # so that other runs are not loaded
        .order_by(RunRow.created_at, RunRow.id)
        .limit(_PAGE)
    )
    page = query
    while rows := deed.session.execute(page).all():
        after = rows[-1][0].created_at, rows[-1][0].id
        for run, experiment in rows:
            try:
                plan, change = resolved_of(experiment).parsed(), patch_of(run.change, run.carried)
                here = fits(request, request.free, plan, change, run.phase)
            except UNREADABLE:
                yield run.id
                continue
            if here and not any(
                fits(other.claim, other.claim.devices, plan, change, run.phase)
                for other in _preferred(deed, experiment, run, host)
            ):
                yield run.id
        page = query.where(tuple_(RunRow.created_at, RunRow.id) > after)


def _preferred(
    deed: Deed, experiment: ExperimentRow, run: RunRow, host: Host
) -> Iterator[WorkerRow]:
    """Yield the living workers for which a run waits rather than run on this host.

    A campaign's runs stay on one host. A run that resumes goes to the host of its checkpoint,
    unless that was unfit. A retry tries another host for a while.
    """
    theirs = _campaign_host(deed, experiment)
    if theirs is None and run.resume_from is not None:
        theirs = _checkpoint_host(deed, experiment, run)
    if theirs is not None:
        if not theirs.is_same(host):
            yield from (row for row in _living(deed) if _is_at(row, theirs))
    elif _failed_here(deed, run, host):
        yield from (row for row in _living(deed) if not _is_at(row, host))


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


_FROM_S = 1_704_067_200.0
"""2024-01-01T00:00:00Z."""
_TICKS_PER_S = 1000
_NUMBERED = re.compile(r"(-[0-9a-f]{6})-\d{1,2}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The sender of a message about a run."""

    token: int
    secret: str | None = None
    worker: str | None = None
    """The worker of the key; None: an administrator's key, or one that never claimed."""


def next_token(last: int, now: float) -> int:
    """Return the token at `now` (Unix seconds) after `last` of the same experiment."""
    return max(last + 1, int((now - _FROM_S) * _TICKS_PER_S))


def home_of_worker(worker: str) -> str:
    """Return the common name of the workers of one home, which share its key."""
    return _NUMBERED.sub(r"\1", worker)


def bind_key(session: Session, key_id: str, worker: str) -> None:
    """Bind a worker's key to the worker that claims with it first, and the worker to the key."""
    row = session.get_one(KeyRow, key_id)
    home = home_of_worker(worker)
    if row.worker is None:
        lock_living_keys(session)  # two claims at once under one name: one of them wins
    if row.worker is None:
        held = load_living_keys_of(session, home)
        if held and not any(row.home and row.home == other.home for other in held):
            raise NotAllowed(
                f"worker {home} has a key already, {held[-1].name!r}; if this one is to replace "
                f"it: `gonogo keys revoke {shlex.quote(held[-1].name)}`"
            )
        row.worker = home
    elif row.worker != home:
        raise NotAllowed(
            f"this key belongs to worker {row.worker}; each has its own: "
            f"`gonogo keys create {worker} --role worker`"
        )


def hash_claim(secret: str) -> str:
    """Return what is stored of a claim's secret; of 128 random bits, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def check_bearer(run: RunRow, bearer: Bearer) -> None:
    """Refuse a bearer that does not hold the run's newest claim."""
    if bearer.worker not in (None, home_of_worker(run.worker or "")) and run.claim is not None:
        raise NotAllowed(
            f"run {run.id} belongs to worker {run.worker}, this key to {bearer.worker}"
        )
    if bearer.token != run.token:
        raise StaleToken(
            f"stale token {bearer.token}: a newer claim owns run {run.id}", newer=run.token
        )
    if run.worker is None or run.claim is None:
        raise NotAllowed(f"no worker has claimed run {run.id}")
    if bearer.secret is None or not hmac.compare_digest(run.claim, hash_claim(bearer.secret)):
        raise NotAllowed(f"{CLAIM_HEADER} is not what run {run.id} was claimed with")


Claimed = tuple[Order, str]
"""The order of a run that now belongs to a worker, and the secret of its claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to a worker."""

    claimed: Claimed | None = None
    untold: tuple[str, ...] = ()
    """Runs under way that the worker does not name: it sends all of them again."""
    over: tuple[str, ...] = ()
    """Runs that the worker names and that were declared dead here."""


def claim(deed: Deed, request: ClaimRequest, key_id: str | None) -> Claim:
    """Return the answer to a worker that asks for work; its key belongs to it from now on."""
    if key_id is not None:
        bind_key(deed.session, key_id, request.worker)
    rebooted = _remember_worker(deed, request)
    mine = load_runs_of_worker(deed.session, request.worker)
    if rebooted:
        for run in mine:
            if run.boot_id != request.boot_id and run.id not in request.active:
                experiment, row = lock_run(deed, run.id)
                if row.state != RunState.ENDED:
                    lost, text = OutcomeCode.WORKER_LOST, f"host {request.host} booted anew"
                    end_without_worker(deed, experiment, row, lost, Actor.INFRA, text)
        mine = []
    unnamed = [run for run in mine if run.id not in request.active]
    _renew(deed, mine, request)
    again = [run.id for run in unnamed if run.state in NOT_BEGUN]
    return Claim(
        claimed=_give(deed, request, again),
        untold=tuple(run.id for run in unnamed if run.id not in again),
        over=_over(deed, request),
    )


def _give(deed: Deed, request: ClaimRequest, again: Collection[str]) -> Claimed | None:
    """Give out the first run that can be: one that the worker does not know of, else a new one."""
    found: Iterable[Claimed | None] = (_give_out(deed, run, request, again=True) for run in again)
    if request.free and not request.draining:
        fit = (run for run in fitting(deed, request) if run not in request.active)
        found = chain(found, (_give_out(deed, run, request, again=False) for run in fit))
    return next(filter(None, found), None)


def _over(deed: Deed, request: ClaimRequest) -> tuple[str, ...]:
    """Return the named runs of a scheduler that were declared dead; on a host its keepers know."""
    if request.engine is EngineName.LOCAL:
        return ()
    ended = select(RunRow).where(
        RunRow.id.in_(request.active), RunRow.worker.is_not(None), RunRow.state == RunState.ENDED
    )
    home = home_of_worker(request.worker)
    return tuple(
        run.id
        for run in deed.session.scalars(ended)
        if home_of_worker(run.worker or "") == home and is_by_service(run.exit)
    )


def _remember_worker(deed: Deed, request: ClaimRequest) -> bool:
    """Store what the worker reports of itself; return whether its host has rebooted."""
    query = select(WorkerRow).where(WorkerRow.name == request.worker).with_for_update()
    row = deed.session.scalars(query).first()
    said = {
        "host": request.host,
        "boot_id": request.boot_id,
        "machine": request.machine_id,
        "seen_at": deed.now,
        "draining": request.draining,
        "claim": request,
    }
    if row is None:
        if insert_if_new(deed.session, WorkerRow, {"name": request.worker, **said}):
            return False
        row = deed.session.scalars(query).one()  # another claim of its own was faster
    by_engine = request.engine is not EngineName.LOCAL
    silent_s = deed.now - row.seen_at
    if row.machine is None or request.machine_id is None:
        same = row.host == request.host
    else:
        same = row.machine == request.machine_id
    if by_engine and row.host != request.host and is_heard(row, deed.now):
        raise NameTaken(
            f"worker {request.worker} works on {row.host}, which was heard {silent_s:.0f} s ago; "
            "one host at a time works a home: stop it there"
        )
    if not same and (is_heard(row, deed.now) or load_runs_of_worker(deed.session, row.name)):
        raise NameTaken(
            f"worker {request.worker} is another machine, {row.host}, which was heard "
            f"{silent_s:.0f} s ago or has runs; give this host a name of its own"
        )
    rebooted = same and not by_engine and row.boot_id != request.boot_id
    for name, value in said.items():
        setattr(row, name, value)
    return rebooted


def _renew(deed: Deed, mine: Collection[RunRow], request: ClaimRequest) -> None:
    for run in mine:
        if run.state in NOT_BEGUN and run.id in request.active:
            progress = deed.session.get_one(ProgressRow, run.id)
            progress.heard += 1
            progress.heard_at = deed.now
            if run.id in request.waits:
                progress.waited_until = deed.now


def _give_out(deed: Deed, run_id: str, request: ClaimRequest, *, again: bool) -> Claimed | None:
    """Give a run to a worker under a new token and secret; None if another was faster."""
    experiment, run = lock_run(deed, run_id)
    expected = run.worker == request.worker and run.state in NOT_BEGUN
    if (again and not expected) or (not again and run.state != RunState.QUEUED):
        return None
    token = next_token(experiment.token, deed.now)
    secret = secrets.token_hex(16)
    try:
        order = _build_order(deed.session, experiment, run, token)
    except UNREADABLE as error:
        _end_unbuilt(deed, experiment, run, error)
        return None
    try:
        if again:
            record_event(deed, experiment, "run.given_again", run=run, token=token)
        else:
            given: dict[str, Any] = {"worker": request.worker, "given_token": token}
            move_run(deed, experiment, run, RunEvent.CLAIM, token=run.token, **given)
    except Conflict:
        return None
    run.worker, run.boot_id = request.worker, request.boot_id
    run.host, run.machine = request.host, request.machine_id
    _note_claim(deed, experiment, run, order, secret)
    return order, secret


def _note_claim(
    deed: Deed, experiment: ExperimentRow, run: RunRow, order: Order, secret: str
) -> None:
    experiment.token = run.token = order.token
    run.claim = hash_claim(secret)
    run.claimed_at = deed.now
    if experiment.state == ExperimentState.QUEUED:
        move_experiment(deed, experiment, ExperimentEvent.START)
    run.order = order.document()
    progress = deed.session.get_one(ProgressRow, run.id)
    progress.heard += 1
    progress.heard_at = deed.now


def _end_unbuilt(deed: Deed, experiment: ExperimentRow, run: RunRow, error: Exception) -> None:
    """End a run of which no order can be made; in the queue it would fail every claim."""
    if experiment.state == ExperimentState.QUEUED:
        move_experiment(deed, experiment, ExperimentEvent.START)
    text = f"no order can be made of its plan: {error}"[:1000]
    end_without_worker(deed, experiment, run, OutcomeCode.START_FAILED, Actor.INFRA, text)


def _build_order(session: Session, experiment: ExperimentRow, run: RunRow, token: int) -> Order:
    return build_order(
        resolved_of(experiment),
        run.phase,
        experiment=experiment.id,
        run=run.id,
        token=token,
        attempt=run.attempt,
        reason=run.reason,
        resume_from=run.resume_from,
        frozen=experiment.frozen,
        change=None if run.change is None else RecordedPatch.model_validate(run.change),
        carried=run.carried or [],
        taints=taints_of(session, experiment, run),
    )
