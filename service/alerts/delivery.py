"""Delivery of alerts: a loop of the conductor that hands due deliveries to a few threads.

At least once: a try is marked after it was made, so a service that dies in between sends the alert
again, under the same id. One subscription has one try at a time, in the order of the alerts. A
receiver that fails rests for a while and delays no other.
"""

import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from service.alerts.outbox import (
    Parcel,
    fail_orphaned,
    has_unspread,
    load_due,
    load_orphaned,
    mark,
    retry_delay_s,
    spread_alerts,
    subscribe_settings,
)
from service.alerts.post import TIMEOUT_S, post_alert
from service.context import Context

THREADS = 8
LONGEST_REST_S = 60.0
"""Longest rest of a receiver that fails."""
REST_S = 5.0
"""Rest after a try that could not be recorded."""
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
        """Subscription → consecutive failures."""
        self._lock = threading.Lock()
        self._subscribed = False

    def run_once(self) -> None:
        """Spread new alerts and start every try that is due."""
        context, settings = self._context, self._context.settings
        if not self._subscribed:
            url, secret = settings.webhook_url, settings.webhook_secret
            context.store.write(lambda s: subscribe_settings(s, url, secret, context.now()))
            self._subscribed = True
        if context.store.read(has_unspread):
            context.store.write(lambda session: spread_alerts(session, context.now()))
        if context.store.read(load_orphaned):
            context.store.write(fail_orphaned)
        with self._lock:
            # before the read: what they mark may be missing from it
            skip = self._busy | {key for key in list(self._rests) if self._rests_now(key)}
        due = context.store.read(lambda s: load_due(s, context.now(), context.url, skip))
        by_webhook: dict[str, list[Parcel]] = {}
        for parcel in due:
            by_webhook.setdefault(parcel.webhook, []).append(parcel)
        for webhook, parcels in by_webhook.items():
            with self._lock:
                self._busy.add(webhook)
            self._pool.submit(self._carry, webhook, parcels)

    def busy(self) -> int:
        """Return how many subscriptions have a try under way."""
        with self._lock:
            return len(self._busy)

    def close(self) -> None:
        """Start no more tries; those under way end by their timeout and are made again."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _carry(self, webhook: str, parcels: list[Parcel]) -> None:
        """Try one subscription's deliveries one after the other; stop at the first that fails."""
        try:
            for parcel in parcels:
                if self._context.closing.is_set():
                    break
                if not self._try(parcel):
                    failed = self._failed[webhook] = self._failed.get(webhook, 0) + 1
                    pause_s = min(LONGEST_REST_S, retry_delay_s(failed, jitter=random.random()))
                    self._rests[webhook] = self._context.now() + pause_s
                    break
                self._failed.pop(webhook, None)
        except Exception:  # noqa: BLE001 - the edge of a thread: logged, and due again
            _log.exception("delivery to %s", webhook, extra={"action": "delivery_failed"})
            self._rests[webhook] = self._context.now() + REST_S
        finally:
            with self._lock:
                self._busy.discard(webhook)

    def _rests_now(self, webhook: str) -> bool:
        """Say whether a receiver rests; a wall clock that steps back makes no rest long."""
        left_s = self._rests[webhook] - self._context.now()
        return 0.0 < left_s <= LONGEST_REST_S

    def _try(self, parcel: Parcel) -> bool:
        context = self._context
        answer = post_alert(
            parcel.target, parcel.alert, parcel.body, context.now(), timeout_s=self._timeout_s
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
