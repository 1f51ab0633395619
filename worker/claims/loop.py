"""When the worker makes a round, and how it stops.

A round is made when a queue message asks for one, when a device has become free, and every `POLL_S`
in any case, so a dead Redis delays nothing for long. Messages carry no order; only this loop, in
the main thread, starts processes.
"""

import logging
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import redis
from redis.exceptions import ConnectionError, RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty

from gonogo.contract.errors import Rejected
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.worker_messages import WAKE_JOB, WAKE_QUEUE_PREFIX
from gonogo.supervise.end_request import HALT_LIMIT_S, EndRequest, ask_halt, until_after
from gonogo.supervise.processes import ProcessRef
from worker.claims.claimer import Claimer
from worker.client import Backoff
from worker.engine.engine import load_submission
from worker.host.home import OpenRun, RunInventory

POLL_S = 2.0
TICK_S = 0.25
ROUND_LIMIT_S = 120.0
END_LIMIT_S = HALT_LIMIT_S + 60.0

_log = logging.getLogger(__name__)

Requests = SimpleQueue[Future[list[str]] | None]

REQUESTS: Requests = SimpleQueue()
"""Rounds that are asked for; None only interrupts the waiting."""


def wake(*_: object, **__: object) -> list[str]:
    """Ask for a round, wait for its end (two minutes at most), return the runs that it started."""
    asked: Future[list[str]] = Future()
    REQUESTS.put(asked)
    return asked.result(timeout=ROUND_LIMIT_S)


@dataclass(slots=True)
class StopSignal:
    """How often the worker was asked to stop, and whether a person asked first."""

    requests: Requests
    times: int = 0
    by_person: bool = False
    """Whether the first was Ctrl-C; SIGTERM means that the host or container is taken away."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal and interrupt the waiting."""
        del frame
        if self.times == 0:
            self.by_person = number == signal.SIGINT
        self.times += 1
        self.requests.put(None)


def make_rounds(claimer: Claimer, requests: Requests, stopping: StopSignal) -> None:
    """Make rounds until the worker is asked to stop."""
    next_at = time.monotonic()
    while stopping.times == 0:
        claimer.settings.notifier.live(time.monotonic())
        asked = _gather(requests, max(0.0, min(TICK_S, next_at - time.monotonic())))
        if stopping.times:
            _answer(asked, [])
            return
        waits = time.monotonic() < next_at and _count_free(claimer) <= claimer.offered
        if waits and not asked:
            continue
        started = _try_round(claimer)
        _answer(asked, started or [])
        free, all_of_them = _count_free(claimer), len(claimer.slots.names)
        claimer.settings.notifier.say(STATUS=f"{free} of {all_of_them} devices free")
        next_at = time.monotonic() + (POLL_S if started is not None else TICK_S)


def end_runs(claimer: Claimer, stopping: StopSignal, *, now: float) -> None:
    """Ask every living run of this host to end with a checkpoint; a second signal ends waiting."""
    claimer.draining = True
    inventory = RunInventory(claimer.settings.runs, claimer.machine)
    asked = EndRequest(  # what a person stopped waits for a person; any other run resumes
        reason=OutcomeCode.HALTED if stopping.by_person else OutcomeCode.PREEMPTED,
        ended_by=Actor.OPERATOR if stopping.by_person else Actor.INFRA,
        at=now,
        text="the worker was asked to stop",
        until_mono=until_after(HALT_LIMIT_S),
    )
    keepers = _own_keepers(claimer, inventory)
    for run in keepers.values():
        if not run.ended:
            ask = partial(ask_halt, run.path, asked)
            claimer.transient.tried("a request to leave", ask, None)
            _log.info("%s asked to leave", run.run, extra={"action": "run_halt_asked"})
    deadline = time.monotonic() + END_LIMIT_S
    next_at = time.monotonic()
    while time.monotonic() < deadline and stopping.times < 2:
        claimer.settings.notifier.live(time.monotonic())
        # A keeper lives a little longer than its run is open: its last act is to report that.
        keepers |= _own_keepers(claimer, inventory)
        if not any(keeper.is_alive() for keeper in keepers):
            break
        if time.monotonic() >= next_at:
            _try_round(claimer)
            next_at = time.monotonic() + POLL_S
        _answer(_gather(stopping.requests, TICK_S), [])
    if stopping.times < 2:
        _try_round(claimer)  # ships what the watchers left


def _own_keepers(claimer: Claimer, inventory: RunInventory) -> dict[ProcessRef, OpenRun]:
    nothing: list[OpenRun] = []
    return {
        run.keeper: run
        for run in claimer.transient.tried("the runs", inventory.open_runs, nothing)
        if run.keeper is not None and load_submission(run.path) is None
    }


def _count_free(claimer: Claimer) -> int:
    nothing: tuple[str, ...] = ()
    return len(claimer.transient.tried("the devices", claimer.free, nothing))


def _try_round(claimer: Claimer) -> list[str] | None:
    nothing: list[str] | None = []
    try:
        return claimer.transient.tried("a round", claimer.run_round, nothing)
    except Exception:  # noqa: BLE001 - the loop's edge: the next round may do better
        _log.exception("the round broke", extra={"action": "round_broke"})
        return []


def _gather(requests: Requests, wait_s: float) -> list[Future[list[str]]]:
    """Return the rounds asked for, waiting for the first one at most `wait_s` seconds."""
    found = []
    try:
        found.append(requests.get(timeout=wait_s))
        while True:
            found.append(requests.get_nowait())
    except Empty:
        return [request for request in found if request is not None]


def _answer(asked: list[Future[list[str]]], started: list[str]) -> None:
    for request in asked:
        request.set_result(started)


QUEUE_NAME = f"{WAKE_QUEUE_PREFIX}default"
RECONNECT = Backoff(first_s=0.1, longest_s=2.0)
WORKER_TTL_S = 30
_SOCKET_TIMEOUT_S = WORKER_TTL_S + 10

_log = logging.getLogger(__name__)


class WakeJob(Job):
    """A message; only `worker.claims.loop.wake` may be its name."""

    def perform(self) -> Any:
        """Wake the worker; raise Rejected where the message names another function."""
        if self.func_name != WAKE_JOB:
            _log.error("refused %r", self.func_name, extra={"action": "job_refused"})
            raise Rejected(f"{self.func_name!r} is not {WAKE_JOB}")
        return wake()

    @property
    def should_retry(self) -> bool:
        """No: a message that fails is worth nothing."""
        return False

    def _call_nothing(self, *_: Any, **__: Any) -> None:
        """Call nothing."""

    execute_success_callback = execute_failure_callback = _call_nothing
    execute_stopped_callback = send_webhooks = _call_nothing


class NoDeathPenalty(BaseDeathPenalty):
    """No timeout: `wake` has its own, and signals belong to the main thread."""

    def setup_death_penalty(self) -> None:
        """Set nothing."""

    def cancel_death_penalty(self) -> None:
        """Nothing is set."""


class WakeQueue(Queue):
    """A queue of wake messages."""

    job_class = WakeJob
    DEFAULT_TIMEOUT = -1


class WakeListener(SimpleWorker):
    """The RQ worker: one queue, no signals, no commands; it survives a Redis outage."""

    job_class = WakeJob
    queue_class = WakeQueue
    death_penalty_class = NoDeathPenalty
    max_connection_wait_time = RECONNECT.longest_s
    log_result_lifespan = False
    stopping: threading.Event

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """Keep the registration fresh; this is also where a stop is seen.

        Raises:
            StopRequested: the worker stops, or Redis is gone (`listen` connects again).
        """
        if self.stopping.is_set():
            raise StopRequested
        try:
            super().heartbeat(*args, **kwargs)
        except ConnectionError as error:
            raise StopRequested from error

    def _install_signal_handlers(self) -> None:
        """Leave signals to the main thread."""

    def subscribe(self) -> None:
        """Take no commands."""

    def unsubscribe(self) -> None:
        """Nothing is subscribed."""


def listen(redis_url: str, stopping: threading.Event) -> None:
    """Take messages until `stopping`; after any failure of Redis, connect again."""
    outage = RECONNECT
    while not stopping.is_set():
        try:
            with redis.Redis.from_url(
                redis_url, socket_timeout=_SOCKET_TIMEOUT_S, socket_connect_timeout=2.0
            ) as connection:
                listener = WakeListener(
                    [QUEUE_NAME],
                    connection=connection,
                    serializer=JSONSerializer,
                    worker_ttl=WORKER_TTL_S,
                    log_job_description=False,
                )
                listener.stopping = stopping
                listener.work(logging_level="WARNING")
            outage = RECONNECT
        except (RedisError, OSError) as error:
            if outage.failures == 0:
                _log.warning("Redis is away: %s", error, extra={"action": "redis_away"})
            outage = outage.later(time.monotonic())
        except Exception:  # noqa: BLE001 - the thread's edge: messages are worth no worker
            _log.exception("the listener broke", extra={"action": "listener_broke"})
            outage = outage.later(time.monotonic())
        stopping.wait(outage.pause_s if outage.failures else RECONNECT.first_s)


def start_listening(redis_url: str, stopping: threading.Event) -> threading.Thread:
    """Start `listen` in a daemon thread."""
    thread = threading.Thread(target=listen, args=(redis_url, stopping), name="wake", daemon=True)
    thread.start()
    return thread
