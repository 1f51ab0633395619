"""What happens by itself: the loops of the conductor, and which service runs them.

A pass that fails is logged and tried again. The right to conduct is a file lock beside SQLite and
an advisory lock on PostgreSQL. RQ wakes, the database decides: a lost, doubled or late message
changes nothing, and workers also ask by themselves.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from gonogo.contract.errors import Unavailable
from gonogo.contract.worker_messages import WAKE_JOB, WAKE_QUEUE_PREFIX
from gonogo.files import open_private
from service.alerts.webhooks import Deliveries
from service.conductor.judge import Judging
from service.conductor.leases import Leases
from service.context import Context
from service.db.store import Store, Topic
from service.queries.runs import load_queued

if TYPE_CHECKING:  # loaded with the first message
    from redis import Redis
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.campaigns import advance, load_running
from service.db.schema import EventRow, IdempotencyRow
from service.experiments.decisions import expire_approval, save_missing
from service.experiments.lifecycle import CONDUCTOR
from service.experiments.state import is_expired
from service.http.dependencies import KEPT_S
from service.queries.experiments import load_awaiting

FILES_S = 30.0
_BATCH = 1_000


def expire_approvals(context: Context) -> None:
    """Let approvals expire that nobody gave in time."""
    for row in context.store.read(load_awaiting):
        if is_expired(row, context.now()):
            context.write(CONDUCTOR, expire_approval, row.id)


def advance_campaigns(context: Context) -> None:
    """Take the next step of each campaign whose runs have all ended."""
    errors = []
    for campaign in context.store.read(load_running):
        try:
            context.write(CONDUCTOR, advance, campaign)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one campaign never holds up the others
            errors.append(error)
    if errors:
        raise errors[0]


def assign_all_cursors(context: Context) -> None:
    """Give every committed event its cursor."""
    while context.store.read(has_waiting) and not context.closing.is_set():
        context.store.write(partial(assign_cursors, now=context.now()))


def has_waiting(session: Session) -> bool:
    """Say whether an event has no cursor yet."""
    query = select(EventRow.id).where(EventRow.cursor.is_(None)).limit(1)
    return session.scalars(query).first() is not None


def assign_cursors(session: Session, now: float) -> int:
    """Give committed events their place in the order of all; return how many got one.

    The order is by time, and by `seq` within an experiment. Only the one conductor does this, after
    the commit, so a reader never finds a smaller cursor later. Cursors grow with the milliseconds.
    """
    due = func.max(EventRow.at).over(partition_by=EventRow.experiment, order_by=EventRow.seq)
    query = select(EventRow.id).where(EventRow.cursor.is_(None)).limit(_BATCH)
    ids = session.scalars(query.order_by(due, EventRow.experiment, EventRow.seq)).all()
    if not ids:
        return 0
    last = session.scalars(select(func.max(EventRow.cursor))).one() or 0
    first = max(last + 1, int(now * 1000))
    places = [{"id": event, "cursor": number} for number, event in enumerate(ids, start=first)]
    session.execute(update(EventRow), places)
    return len(ids)


def save_decision_files(context: Context) -> None:
    """Write the decision files that the home lacks; every service does, also one that does not
    conduct."""
    folder = context.settings.decisions
    context.store.read(lambda session: save_missing(folder, session))


def forget_keys(context: Context) -> None:
    """Delete the idempotency keys of yesterday."""
    old = IdempotencyRow.created_at < context.now() - KEPT_S
    found = select(IdempotencyRow.key).where(old).limit(1)
    if context.store.read(lambda session: session.scalars(found).first()) is not None:
        context.store.write(
            lambda session: session.execute(delete(IdempotencyRow).where(old)) and None
        )


QUEUE = f"{WAKE_QUEUE_PREFIX}default"
AGAIN_S = 3.0
MOST = 100
_TIMEOUT_S = 1.0
_log = logging.getLogger(__name__)


def decide_wakes(waiting: list[str], woken: Mapping[str, float], now_mono: float) -> list[str]:
    """Return the waiting runs for which a message is due: new ones, and those of a while ago."""
    return [run for run in waiting if now_mono - woken.get(run, float("-inf")) >= AGAIN_S]


class Waker:
    """Sends wake messages for what the database says is waiting."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._woken: dict[str, float] = {}
        self._sent = 0
        self._down = False
        self._redis: Redis | None = None

    def run_once(self) -> None:
        """Send what is due; while Redis is down nothing is sent."""
        from redis.exceptions import RedisError

        waiting = self._context.store.read(lambda session: load_queued(session, MOST))
        now_mono = self._context.mono()
        due = decide_wakes(waiting, self._woken, now_mono)
        self._woken = {run: self._woken.get(run, now_mono) for run in waiting}
        self._woken |= dict.fromkeys(due, now_mono)
        url, was_down = self._context.settings.redis_url, self._down
        if not due or url is None:
            return
        try:
            self._send(url, due)
            self._down = False
        except RedisError as error:
            self._down = True
            if not was_down:
                _log.warning("no wake: %s", error, extra={"action": "wake_unavailable"})

    def _send(self, url: str, due: list[str]) -> None:
        from redis import Redis
        from rq import Queue
        from rq.serializers import JSONSerializer

        redis = self._redis = self._redis or Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        queue = Queue(QUEUE, connection=redis, serializer=JSONSerializer)
        for run in due[: max(0, len(due) - len(queue))]:
            self._sent += 1
            queue.enqueue_call(
                WAKE_JOB,
                timeout=-1,
                result_ttl=0,
                failure_ttl=60,
                job_id=f"wake-{run}-{int(self._context.now() * 1000)}-{self._sent}",
                unique=True,
            )

    def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()


MIN_PAUSE_S = 0.02
"""Between two passes, so that a busy bell does not make a loop spin."""
AWAY_S = 5.0
"""A pass that comes so much too late means that the process was away."""


@dataclass(slots=True)
class Loop:
    """One repeated pass."""

    name: str
    run_once: Callable[[], None]
    every_s: float
    _: KW_ONLY
    hears: Topic | None = None
    pause_s: float = MIN_PAUSE_S
    """From what it hears to the pass, so that many commits cost one pass."""
    forget: Callable[[], None] | None = None
    """Called before a late pass: the host stood still, or another service led in between."""
    last_pass_at: float | None = None
    """Unix seconds, for the metrics."""
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, context: Context, may_run: Callable[[], bool]) -> None:
        """Start the thread; it ends when the context closes."""
        bell = context.bell.listen(*([self.hears] if self.hears else []))
        self._thread = threading.Thread(
            target=self._repeat, args=(context, bell, may_run), name=self.name, daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _repeat(self, context: Context, bell: threading.Event, may_run: Callable[[], bool]) -> None:
        due = float("-inf")
        while not context.closing.is_set():
            if may_run():
                if self.forget is not None and time.monotonic() - due >= AWAY_S:
                    self.forget()
                self._pass(context)
                due = time.monotonic() + self.every_s
            if bell.wait(self.every_s):
                context.closing.wait(self.pause_s)
            bell.clear()

    def _pass(self, context: Context) -> None:
        try:
            self.run_once()
        except Unavailable as error:
            _log.warning("%s: %s", self.name, error, extra={"action": "pass_unavailable"})
        except Exception:  # noqa: BLE001 - the edge of a thread: logged, tried again
            _log.exception("%s: pass failed", self.name, extra={"action": "pass_failed"})
        self.last_pass_at = context.now()


_LOCK = 0x636F6E6475
_CHECK_S = 1.0
_STILL = text("SELECT true")
_TRY = text(f"SELECT pg_try_advisory_lock({_LOCK})")


class Leader:
    """Holds the right to conduct, or tries to get it."""

    def __init__(self, store: Store, lock_file: Path) -> None:
        self._store = store
        self._path = lock_file
        self._file: IO[bytes] | None = None
        self._connection: Connection | None = None
        self._checked_at = float("-inf")
        self._leads = False
        self._lock = threading.Lock()

    def leads(self, now_mono: float) -> bool:
        """Say whether this service conducts; asks the lock at most once a second."""
        with self._lock:
            if now_mono - self._checked_at >= _CHECK_S:
                self._checked_at = now_mono
                led = self._leads
                self._leads = self._lock_file() if self._store.sqlite else self._lock_row()
                if self._leads and not led:
                    _log.info("this service conducts", extra={"action": "leader"})
            return self._leads

    def _lock_file(self) -> bool:
        if self._file is not None:
            return True
        try:
            stream = open_private(self._path)
        except OSError as error:  # asked again in a second
            _log.error("the lock cannot be had: %s", error, extra={"action": "leader_unasked"})
            return False
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another service holds it
            stream.close()
            return False
        self._file = stream
        return True

    def _lock_row(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._store.connect().execution_options(
                    isolation_level="AUTOCOMMIT"
                )
            found = self._connection.execute(_STILL if self._leads else _TRY).scalar()
        except SQLAlchemyError as error:
            _log.warning("the lock is gone: %s", error, extra={"action": "leader_lost"})
            found = None
        if found is None:
            self._drop()
        return bool(found)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Give the right back."""
        with self._lock:
            self._leads = False
            if self._file is not None:
                self._file.close()
                self._file = None
            self._drop()


JOIN_S = 5.0
CURSORS_S = 0.1
"""How long an event may wait for its cursor, so that many get theirs at once."""
WAKE_S = 0.1
"""How long a queued run may wait for its message, so that many are announced at once."""


class Conductor:
    """Runs every loop while this service leads."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._leader = Leader(context.store, context.settings.home / "conductor.lock")
        self._waker = wake = Waker(context)
        self._deliveries = alerts = Deliveries(context)
        self._judging = judging = Judging(context)
        leases = Leases(context)
        campaigns = partial(advance_campaigns, context)
        approvals = partial(expire_approvals, context)
        cursors = partial(assign_all_cursors, context)
        self.loops = [
            Loop("judging", judging.run_once, 0.5, hears=Topic.ENDED),
            Loop("wake", wake.run_once, 1.0, hears=Topic.QUEUED, pause_s=WAKE_S),
            Loop("leases", leases.run_once, 2.0, forget=leases.forget),
            Loop("approvals", approvals, 1.0),
            Loop("campaigns", campaigns, 1.0),
            Loop("alerts", alerts.run_once, 0.5, hears=Topic.ALERTS),
            Loop("cursors", cursors, 0.5, hears=Topic.EVENTS, pause_s=CURSORS_S),
            Loop("upkeep", partial(forget_keys, context), 30.0),
        ]

    def start(self) -> None:
        """Start every loop."""
        for loop in self.loops:
            loop.start(self._context, lambda: self._leader.leads(self._context.mono()))

    def close(self) -> None:
        """End every loop (the context is closing) and give the lead away."""
        for loop in self.loops:
            loop.join(JOIN_S)
        self._judging.close()
        self._deliveries.close()
        self._leader.close()
        self._waker.close()
