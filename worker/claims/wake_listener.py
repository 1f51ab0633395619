"""Listens for wake messages (RQ) in a thread, whatever happens to Redis.

There is one queue and one allowed function. Nothing else that a job may name (callbacks, webhooks,
retries, commands) is called or imported. A Redis outage of any length ends nothing. Messages may
get lost: the main loop asks the control plane by itself every few seconds.
"""

import logging
import threading
import time
from typing import Any

import redis
from redis.exceptions import ConnectionError, RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty

from gonogo.contract.agent import WAKE_JOB, WAKE_QUEUE_PREFIX
from gonogo.contract.errors import Rejected
from worker.claims.loop import wake
from worker.client import Backoff

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
