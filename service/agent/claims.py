"""Which run does a worker get? The oldest queued one that fits its free devices, exactly once.

A claim is idempotent: a run that this worker claimed and does not know of is given out again under
a higher token and a new secret. A new boot id of the same machine proves that everything it ran
before is dead, but for what an engine was handed; another machine of the same name proves nothing,
and is refused while the first one works. A worker that is silent proves nothing either, and nothing
is taken from it here. What a worker has and the database calls queued was claimed before a database
of then was restored: it is not given to that worker once more, and is its own again with the next
that is heard of it. One that it has told to its end it names no more: so each worker is asked once
for what has waited since before the service's start, before it is given one of those.
"""

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import ClaimRequest
from gonogo.contract.api import AlertType
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import Conflict, NameTaken
from gonogo.contract.ids import Kind, is_id
from gonogo.contract.lifecycle import ExperimentEvent, ExperimentState, RunEvent, RunState
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.patch import RecordedPatch
from gonogo.planning.resolve import build_order
from service.agent.fence import Bearer, bind_key, hash_claim, home_of_worker
from service.agent.fitting import UNREADABLE, fitting
from service.db.documents import ClaimKept, is_by_service
from service.db.insert import insert_if_new
from service.db.schema import ExperimentRow, ProgressRow, RunRow, WorkerRow
from service.experiments.course import end_without_worker, resolved_of
from service.experiments.epochs import EPOCH, STARTED, is_of_now, next_token
from service.experiments.lifecycle import (
    Deed,
    lock_run,
    move_experiment,
    move_run,
    queue_alert_of_none,
    record_event,
)
from service.experiments.speeds import load_best_step_s
from service.experiments.taints import taints_of
from service.experiments.takers import heard, is_heard
from service.queries.runs import load_runs_of_worker

_MOST_UNKNOWN = 8
"""Of a claim: a worker whose service is another one now may have hundreds."""
_MOST_ASKED = 100
"""Queued runs of before the service's start, the oldest, that a worker is asked for at once. Those
behind them are given out unasked, rather than wait for what fits nobody."""
_NOT_STARTED = (RunState.CLAIMED, RunState.PREFLIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that now belongs to a worker."""

    order: Order
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker is answered: a run that is its own now, if any, and what it is asked."""

    claimed: Claimed | None = None
    untold: tuple[str, ...] = ()
    """Runs under way that it neither names nor gave up."""
    over: tuple[str, ...] = ()
    """Runs of its home that it names and that were declared dead here."""


def claim(deed: Deed, request: ClaimRequest, key_id: str | None) -> Claim:
    """Return what a worker that asks for work is answered.

    Args:
        deed: the transaction.
        request: what the worker says of itself and offers.
        key_id: the key that it claims with, which belongs to this worker from now on; None: an
            administrator's, which belongs to none.

    Raises:
        NotAllowed: the key belongs to another worker.
        NameTaken: another machine works under the worker's name.
    """
    if key_id is not None:
        bind_key(deed.session, key_id, request.worker)
    named, asked = _named_before(deed, request), _asked_before(deed, request)
    rebooted = _remember_worker(deed, request)
    _tell_unknown(deed, request, frozenset(request.active) - named)
    mine = load_runs_of_worker(deed.session, request.worker)
    if rebooted:
        for run in mine:
            _bury(deed, run, request)
    else:
        for run in mine:
            if run.id in request.given_up and run.id not in request.active:
                _give_up(deed, run, request)
        _renew(deed, mine, request)
    first_asked = _ask_first(deed, mine, request, asked)
    given = [] if rebooted else [run for run in mine if run.id not in first_asked]
    untold = _untold(mine, request) if request.tells_again and not rebooted else ()
    return Claim(
        claimed=_give_again(deed, given, request) or _give_new(deed, request, first_asked),
        untold=(*untold, *first_asked),
        over=_over(deed, request) if request.lets_go else (),
    )


def _named_before(deed: Deed, request: ClaimRequest) -> frozenset[str]:
    """Return the runs that the worker's last claim named."""
    row = deed.session.get(WorkerRow, request.worker)
    return frozenset() if row is None else frozenset(row.claim.active)


def _asked_before(deed: Deed, request: ClaimRequest) -> frozenset[str]:
    """Return the runs that this service has asked the worker for, as of its last claim."""
    row = deed.session.get(WorkerRow, request.worker)
    if row is None or row.claim.asked_by != deed.session.info[STARTED]:
        return frozenset()
    return frozenset(row.claim.asked)


def _ask_first(
    deed: Deed, mine: Iterable[RunRow], request: ClaimRequest, asked: Collection[str]
) -> list[str]:
    """Return the runs to ask the worker for before they are given out, and note them.

    It may not know of such a one since the answer was lost; or it has told its end, and a database
    of before was restored: then it names the run next time, and tells all of it.
    """
    if not request.tells_again:
        return []
    own = [run.id for run in mine if run.state in _NOT_STARTED]
    waited = _queued_before(deed.session)
    unknown = [run for run in (*own, *waited) if run not in request.active]
    row = deed.session.get_one(WorkerRow, request.worker)
    noted = {"asked": unknown, "asked_by": deed.session.info[STARTED]}
    row.claim = row.claim.model_copy(update=noted)
    return [run for run in unknown if run not in asked and run not in request.given_up]


def _queued_before(session: Session) -> list[str]:
    """Return what has waited in the queue since before the service's start, the oldest first."""
    query = select(RunRow.id).where(
        RunRow.state == RunState.QUEUED, RunRow.created_at < session.info[STARTED]
    )
    return list(session.scalars(query.order_by(RunRow.created_at).limit(_MOST_ASKED)))


def _tell_unknown(deed: Deed, request: ClaimRequest, fresh: Collection[str]) -> None:
    """Tell of runs that a worker has and nobody knows here: they began after a backup, perhaps.

    Args:
        deed: the transaction.
        request: what the worker says.
        fresh: the runs that it names for the first time.
    """
    mine = {run for run in fresh if is_id(run, Kind.RUN)}
    if not mine:
        return
    known = set(deed.session.scalars(select(RunRow.id).where(RunRow.id.in_(mine))))
    for run in sorted(mine - known)[:_MOST_UNKNOWN]:
        text = (
            f"worker {request.worker} on {request.host} has {run}, which is not known here (was "
            f"the database restored?): it goes on there and counts for nothing, and what it was of "
            f"may run once more; `gonogo doctor` on {request.host} shows it"
        )
        queue_alert_of_none(deed, AlertType.RUN_UNKNOWN, text, run=run)


def _give_again(deed: Deed, mine: list[RunRow], request: ClaimRequest) -> Claimed | None:
    """Return a run that the worker claimed and does not know of."""
    for run in mine:
        if run.state in _NOT_STARTED and run.id not in request.active:
            claimed = _give_out(deed, run.id, request, again=True)
            if claimed is not None:
                return claimed
    return None


def _give_new(deed: Deed, request: ClaimRequest, first_asked: Collection[str]) -> Claimed | None:
    """Return a run of the queue, none of those that the worker is asked for first."""
    if request.draining or not request.free:
        return None
    for run_id in fitting(deed, request, lambda run, error: _end_unbuilt(deed, run, error)):
        if run_id in request.active or run_id in first_asked:
            continue
        claimed = _give_out(deed, run_id, request, again=False)
        if claimed is not None:
            return claimed
    return None


def _untold(mine: list[RunRow], request: ClaimRequest) -> tuple[str, ...]:
    started = (run.id for run in mine if run.state not in _NOT_STARTED)
    return tuple(run for run in started if run not in {*request.active, *request.given_up})


def _over(deed: Deed, request: ClaimRequest) -> tuple[str, ...]:
    if request.engine is EngineName.LOCAL:
        return ()  # its own keepers tell it what became of them
    ended = select(RunRow.id, RunRow.worker, RunRow.exit).where(
        RunRow.id.in_(request.active),
        RunRow.worker.is_not(None),
        RunRow.state == RunState.ENDED,
    )
    home = home_of_worker(request.worker)  # another worker there may have claimed it, and be gone
    return tuple(
        run
        for run, worker, said in deed.session.execute(ended)
        if home_of_worker(worker) == home and is_by_service(said)
    )


def _remember_worker(deed: Deed, request: ClaimRequest) -> bool:
    """Store what the worker says of itself; return whether its host has booted anew.

    What an engine was handed dies with no host of the worker's.
    """
    query = select(WorkerRow).where(WorkerRow.name == request.worker).with_for_update()
    row = deed.session.scalars(query).first()
    said = {
        "host": request.host,
        "boot_id": request.boot_id,
        "machine": request.machine_id,
        "seen_at": deed.now,
        "draining": request.draining,
        "claim": ClaimKept.model_validate(request.model_dump()),
    }
    if row is None:
        if insert_if_new(deed.session, WorkerRow, {"name": request.worker, **said}):
            return False
        row = deed.session.scalars(query).one()  # another claim of its own was faster
    same = _is_same_machine(row, request)
    by_engine = request.engine is not EngineName.LOCAL
    silent_s = deed.now - row.seen_at
    if by_engine and row.host != request.host and is_heard(row, deed.now):
        raise NameTaken(
            f"worker {request.worker} works on {row.host}, which was heard {silent_s:.0f} s ago; "
            "one host at a time works a home: stop it there"
        )
    if not same and _works(deed, row):
        raise NameTaken(
            f"worker {request.worker} is another machine, {row.host}, which was heard "
            f"{silent_s:.0f} s ago or has runs; give this host a name of its own"
        )
    rebooted = same and not by_engine and row.boot_id != request.boot_id
    for name, value in said.items():
        setattr(row, name, value)
    return rebooted


def _is_same_machine(row: WorkerRow, request: ClaimRequest) -> bool:
    """Say whether a claim comes from the machine of the one before; by name where none is said."""
    if row.machine is None or request.machine_id is None:
        return row.host == request.host
    return row.machine == request.machine_id


def _works(deed: Deed, row: WorkerRow) -> bool:
    """Say whether a worker was heard lately, or has runs that have not ended."""
    return is_heard(row, deed.now) or bool(load_runs_of_worker(deed.session, row.name))


def _bury(deed: Deed, run: RunRow, request: ClaimRequest) -> None:
    """End an attempt of before the reboot, unless its directory waits to be shipped.

    A run among `active` is reported by the worker's reaper, with all that it left behind.
    """
    if run.boot_id == request.boot_id or run.id in request.active:
        return
    experiment, row = lock_run(deed, run.id)
    if row.state == RunState.ENDED:
        return
    text = f"host {request.host} booted anew"
    end_without_worker(deed, experiment, row, OutcomeCode.WORKER_LOST, Actor.INFRA, text)


def _give_up(deed: Deed, run: RunRow, request: ClaimRequest) -> None:
    """End an attempt that has ended on its host, and of which nothing can be told any more."""
    experiment, row = lock_run(deed, run.id)
    if row.state == RunState.ENDED:
        return
    text = f"given up on {request.host}: {request.given_up[run.id]}"
    end_without_worker(deed, experiment, row, OutcomeCode.WORKER_LOST, Actor.INFRA, text)


def _renew(deed: Deed, mine: list[RunRow], request: ClaimRequest) -> None:
    """A claim is a sign of life of the worker's runs that have no watcher yet."""
    for run in mine:
        if run.state in _NOT_STARTED and run.id in request.active:
            progress = deed.session.get_one(ProgressRow, run.id)
            progress.heard += 1
            progress.heard_at = deed.now
            if run.id in request.waits:
                progress.waited_until = deed.now


def _give_out(deed: Deed, run_id: str, request: ClaimRequest, *, again: bool) -> Claimed | None:
    """Give a run to a worker under a new token and secret; None when another was faster."""
    experiment, run = lock_run(deed, run_id)
    expected = run.worker == request.worker and run.state in _NOT_STARTED
    if (again and not expected) or (not again and run.state != RunState.QUEUED):
        return None
    token = next_token(experiment.token, deed.session.info[EPOCH], deed.now)
    secret = secrets.token_hex(16)
    try:
        order = _build_order(deed.session, experiment, run, token)
    except UNREADABLE as error:
        _end_unbuilt(deed, run_id, error)
        return None
    try:
        if again:
            record_event(
                deed, experiment, "run.given_again", run=run.id, phase=run.phase, token=token
            )
        else:
            _move(deed, experiment, run, request.worker, token)
    except Conflict:
        return None
    run.worker, run.boot_id = request.worker, request.boot_id
    run.host, run.machine = request.host, request.machine_id
    return Claimed(order=_note_claim(deed, experiment, run, order, secret), secret=secret)


def take_up(deed: Deed, run_id: str, bearer: Bearer) -> None:
    """Let a run that the database calls queued be of the worker that has it.

    Believed of one whose last claim named the run among what it has, where no later attempt of the
    experiment is known: it was claimed after the moment that the database was restored to.

    Args:
        deed: the transaction.
        run_id: the run.
        bearer: who speaks of it, with the token and the secret of that claim.
    """
    experiment, run = lock_run(deed, run_id)
    given = experiment.token < bearer.token and is_of_now(bearer.token, deed.session.info[EPOCH])
    if run.state != RunState.QUEUED or not given or bearer.secret is None:
        return
    worker = next((row for row in _living(deed) if _has(row, run_id, bearer)), None)
    if worker is None:
        return
    try:
        order = _build_order(deed.session, experiment, run, bearer.token)
    except UNREADABLE:
        return
    _move(deed, experiment, run, worker.name, bearer.token)
    run.worker, run.boot_id = worker.name, worker.boot_id
    run.host, run.machine = worker.host, worker.machine
    _note_claim(deed, experiment, run, order, bearer.secret)
    deed.session.flush()


def _living(deed: Deed) -> Iterable[WorkerRow]:
    return deed.session.scalars(select(WorkerRow).where(heard(deed.now)))


def _has(row: WorkerRow, run_id: str, bearer: Bearer) -> bool:
    """Say whether a worker whose key it is has said that it has a run.

    By that claim the key is the worker's: one that never claimed is nobody's.
    """
    theirs = bearer.by_admin or bearer.worker == home_of_worker(row.name)
    return theirs and run_id in row.claim.active


def _move(deed: Deed, experiment: ExperimentRow, run: RunRow, worker: str, token: int) -> None:
    """Let a queued run be claimed.

    Raises:
        Conflict: another was faster.
    """
    claimed = RunEvent.CLAIM
    move_run(deed, experiment, run, claimed, token=run.token, worker=worker, given_token=token)


def _note_claim(
    deed: Deed, experiment: ExperimentRow, run: RunRow, order: Order, secret: str
) -> Order:
    """Keep with what a run was claimed; return the order as it is given out."""
    experiment.token = run.token = order.token
    run.claim = hash_claim(secret)
    run.claimed_at = deed.now
    if experiment.state == ExperimentState.QUEUED:
        move_experiment(deed, experiment, ExperimentEvent.START)
    order = order.model_copy(update={"best_step_s": load_best_step_s(deed.session, order)})
    run.order = order.document()
    progress = deed.session.get_one(ProgressRow, run.id)
    progress.heard += 1
    progress.heard_at = deed.now
    return order


def _end_unbuilt(deed: Deed, run_id: str, error: Exception) -> None:
    """End a run of which no order can be made: the plan is of a release that said more, or less.

    Left in the queue it would fail every claim, of whatever worker.
    """
    experiment, run = lock_run(deed, run_id)
    if run.state == RunState.ENDED:
        return  # another claim met it first
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
