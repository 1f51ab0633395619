"""Wake messages to workers while runs wait, by RQ.

RQ wakes, the database decides: a message carries nothing, so a lost, doubled or late one changes
nothing. Messages are sent again every few seconds while runs wait. Redis may be down: workers also
ask by themselves.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gonogo.contract.agent import WAKE_JOB, WAKE_QUEUE_PREFIX
from service.context import Context
from service.queries.runs import load_queued

if TYPE_CHECKING:  # loaded with the first message
    from redis import Redis

QUEUE = f"{WAKE_QUEUE_PREFIX}default"
AGAIN_S = 3.0
MOST = 100
"""Runs that are announced at once; a message only wakes."""
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
