"""How does a queue message reach the worker, whatever happens to Redis?

An RQ worker, constructed here, in a thread of its own. Guarantees: exactly one queue; one
allow-listed function, and of everything else that a job may name (callbacks, webhooks, retries)
nothing is ever called or imported; commands over Redis are not obeyed; a Redis outage of any
length ends nothing and is over within seconds of its return. Jobs run in this process, since they
take moments and a forked work-horse of a process with threads is a hazard of its own.

Not guaranteed: that a message arrives. The worker's main loop asks the control plane by itself
every few seconds, so a lost, doubled or late message changes nothing.
"""

import logging
import threading
import time
import zlib
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
from worker.backoff import Backoff
from worker.desk.job import wake

QUEUE_NAME = f"{WAKE_QUEUE_PREFIX}default"
RECONNECT = Backoff(first_s=0.1, longest_s=2.0)
WORKER_TTL_S = 30
DATA_BYTES = 2**16
"""Of a message, unpacked; a wake is one name."""
_SOCKET_TIMEOUT_S = WORKER_TTL_S + 10

_log = logging.getLogger(__name__)


class WakeJob(Job):
    """A message; only `worker.desk.job.wake` may be its name."""

    def restore(self, raw_data: Any) -> Any:
        """Take over what stands in Redis, which anybody there may have written, but no gigabyte."""
        data = raw_data.get(b"data")
        if data is not None and not _is_small(data):
            raw_data = {**raw_data, b"data": b""}  # names nothing
        # what a message failed of is packed, too, and nobody asks
        return super().restore({**raw_data, b"exc_info": b""})

    def perform(self) -> Any:
        """Wake the worker, or refuse.

        Raises:
            Rejected: the message names another function.
        """
        if self.func_name != WAKE_JOB:
            _log.error("refused %r", self.func_name, extra={"action": "job_refused"})
            raise Rejected(f"{self.func_name!r} is not {WAKE_JOB}")
        return wake()

    @property
    def should_retry(self) -> bool:
        """No: a message that fails is worth nothing."""
        return False

    def execute_success_callback(self, *_: Any, **__: Any) -> None:
        """Call nothing."""

    def execute_failure_callback(self, *_: Any, **__: Any) -> None:
        """Call nothing."""

    def execute_stopped_callback(self, *_: Any, **__: Any) -> None:
        """Call nothing."""

    def send_webhooks(self, *_: Any, **__: Any) -> None:
        """Call nothing."""


def _is_small(packed: bytes) -> bool:
    """Say whether data is no more than a message's: a packed byte may be a thousand."""
    unpacking = zlib.decompressobj()
    try:
        unpacking.decompress(packed, DATA_BYTES)
    except zlib.error:
        return len(packed) <= DATA_BYTES  # it was never packed
    return not unpacking.unconsumed_tail


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


class Waker(SimpleWorker):
    """The RQ worker: one queue, no signals, no commands, no end when Redis is away."""

    job_class = WakeJob
    queue_class = WakeQueue
    death_penalty_class = NoDeathPenalty
    max_connection_wait_time = RECONNECT.longest_s
    log_result_lifespan = False
    stopping: threading.Event

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """Keep the registration fresh; this is also where a stop is seen.

        Raises:
            StopRequested: the worker stops, or Redis is gone (`listen` begins again, and says so
                once, where RQ would say it every few seconds for as long as it lasts).
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
        """Take no commands: stopping is the main thread's business."""

    def unsubscribe(self) -> None:
        """Nothing is subscribed."""

    def maintain_heartbeats(self, job: Job) -> None:
        """Keep the registration fresh where Redis answers."""
        try:
            super().maintain_heartbeats(job)
        except RedisError as error:
            _log.info("no heartbeat to Redis: %s", error, extra={"action": "redis_away"})

    def set_current_job_working_time(self, *args: Any, **kwargs: Any) -> None:
        """Note the working time where Redis answers."""
        try:
            super().set_current_job_working_time(*args, **kwargs)
        except RedisError as error:
            _log.info("no working time to Redis: %s", error, extra={"action": "redis_away"})


def listen(redis_url: str, stopping: threading.Event) -> None:
    """Take messages until `stopping`; whatever goes wrong with Redis, begin again."""
    outage = RECONNECT
    while not stopping.is_set():
        try:
            with redis.Redis.from_url(
                redis_url, socket_timeout=_SOCKET_TIMEOUT_S, socket_connect_timeout=2.0
            ) as connection:
                build_waker(connection, stopping).work(logging_level="WARNING")
            outage = RECONNECT
        except (RedisError, OSError) as error:
            if outage.failures == 0:
                _log.warning("Redis is away: %s", error, extra={"action": "redis_away"})
            outage = outage.later(time.monotonic())
        except Exception:  # noqa: BLE001 - the thread's edge: messages are worth no worker
            _log.exception("the listener broke", extra={"action": "listener_broke"})
            outage = outage.later(time.monotonic())
        stopping.wait(outage.pause_s if outage.failures else RECONNECT.first_s)


def build_waker(connection: redis.Redis, stopping: threading.Event) -> Waker:
    """Return the RQ worker on its one queue.

    Raises:
        RedisError: Redis does not answer.
    """
    waker = Waker(
        [QUEUE_NAME],
        connection=connection,
        serializer=JSONSerializer,
        job_class=WakeJob,
        queue_class=WakeQueue,
        worker_ttl=WORKER_TTL_S,
        log_job_description=False,
    )
    waker.stopping = stopping
    return waker


def start_listening(redis_url: str, stopping: threading.Event) -> threading.Thread:
    """Start `listen` in a daemon thread."""
    thread = threading.Thread(target=listen, args=(redis_url, stopping), name="waker", daemon=True)
    thread.start()
    return thread
