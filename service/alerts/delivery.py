"""Who carries the alerts? A loop of the conductor that hands due deliveries to a few threads.

At least once: a try is marked after it was made, so a service that dies in between tells it again,
under the same id. One subscription has one try under way at a time, in the order of the alerts; a
receiver that fails is left alone for a while, longer each time, and delays no other. Not
guaranteed: order across retries, exactly once.
"""

import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from service.alerts.message import TIMEOUT_S
from service.alerts.outbox import (
    Parcel,
    fail_orphaned,
    has_unspread,
    load_due,
    load_orphaned,
    mark,
    spread_alerts,
    subscribe_settings,
)
from service.alerts.schedule import retry_delay_s
from service.context import Context

THREADS = 8
LONGEST_REST_S = 60.0
"""Of a subscription whose receiver fails and fails."""
REST_S = 5.0
"""Pause of a subscription whose try could not be recorded, so that it is not told in a rush."""
_log = logging.getLogger(__name__)


class Deliveries:
    """Delivers what the outbox holds."""

    def __init__(self, context: Context, *, timeout_s: float = TIMEOUT_S) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="alerts")
        self._busy: set[str] = set()
        self._rests: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        """Subscription → tries running that failed."""
        self._lock = threading.Lock()
        self._subscribed = False

    def run_once(self) -> None:
        """Spread new alerts and start every try that is due."""
        context = self._context
        if not self._subscribed:
            self._subscribe()
        if context.store.read(has_unspread):
            context.store.write(lambda session: spread_alerts(session, context.now()))
        if context.store.read(load_orphaned):
            context.store.write(fail_orphaned)
        with self._lock:
            # before the read: what they mark may be missing from it
            skip = self._busy | {key for key in list(self._rests) if self._rests_now(key)}
        self._start(context.store.read(lambda s: load_due(s, context.now(), context.url, skip)))

    def busy(self) -> int:
        """Return how many subscriptions have a try under way."""
        with self._lock:
            return len(self._busy)

    def close(self) -> None:
        """Start no more tries; those under way end by their timeout and are told again."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _subscribe(self) -> None:
        settings, now = self._context.settings, self._context.now()
        self._context.store.write(
            lambda session: subscribe_settings(
                session, settings.webhook_url, settings.webhook_secret, now
            )
        )
        self._subscribed = True

    def _start(self, due: list[Parcel]) -> None:
        by_webhook: dict[str, list[Parcel]] = {}
        for parcel in due:
            by_webhook.setdefault(parcel.webhook, []).append(parcel)
        for webhook, parcels in by_webhook.items():
            with self._lock:
                self._busy.add(webhook)
            self._pool.submit(self._carry, webhook, parcels)

    def _carry(self, webhook: str, parcels: list[Parcel]) -> None:
        """Try one subscription's deliveries one after the other; stop at the first that fails."""
        try:
            for parcel in parcels:
                if self._context.closing.is_set():
                    break
                if not self._try(parcel):
                    self._rest(webhook)
                    break
                self._failed.pop(webhook, None)
        except Exception:  # noqa: BLE001 - the edge of a thread: logged, and due again
            _log.exception("delivery to %s", webhook, extra={"action": "delivery_failed"})
            self._rests[webhook] = self._context.now() + REST_S
        finally:
            with self._lock:
                self._busy.discard(webhook)

    def _rest(self, webhook: str) -> None:
        """Leave a receiver alone that failed: one that hangs holds a thread for seconds."""
        failed = self._failed[webhook] = self._failed.get(webhook, 0) + 1
        pause_s = min(LONGEST_REST_S, retry_delay_s(failed, jitter=random.random()))
        self._rests[webhook] = self._context.now() + pause_s

    def _rests_now(self, webhook: str) -> bool:
        """Say whether a receiver is left alone; a wall clock that steps back makes no rest long."""
        left_s = self._rests[webhook] - self._context.now()
        return 0.0 < left_s <= LONGEST_REST_S

    def _try(self, parcel: Parcel) -> bool:
        from service.alerts.post import post_alert  # the first alert loads it

        context, now = self._context, self._context.now()
        answer = post_alert(
            parcel.target, parcel.alert, parcel.body, now, timeout_s=self._timeout_s
        )
        if answer.error is not None:
            _log.warning(
                "alert %s to %s: %s",
                parcel.alert,
                parcel.webhook,
                answer.error,
                extra={"action": "alert_not_delivered"},
            )
        jitter = random.random()
        context.store.write(lambda session: mark(session, parcel, answer, context.now(), jitter))
        return answer.error is None
