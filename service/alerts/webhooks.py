"""Alerts to webhooks: the outbox, and one signed POST after the Standard Webhooks specification.

Alerts are committed together with their cause. Delivery is at least once: a try is marked after it
was made, and `webhook-id` is the alert's id, so a receiver can drop duplicates. A receiver that
fails is tried again for `GIVE_UP_S`, and delays no other.
"""

import ipaddress
import json
import logging
import random
import socket
import ssl
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urlsplit

import httpx
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from standardwebhooks import Webhook

from gonogo import __version__
from gonogo.contract.api import AlertBody, DeliveryState
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import Rejected
from gonogo.contract.wire import Kind, new_id
from service.context import Context
from service.db.schema import AlertRow, DeliveryRow, WebhookRow
from service.db.store import Topic, ring
from service.experiments.lifecycle import Deed
from service.queries.callers import load_webhook
from service.settings import check_secret, new_secret
from service.text import stamp
from service.views.rows import alert_url

TIMEOUT_S = 5.0
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log addresses, which may be secrets


def check_reach(url: str) -> None:
    """Refuse a URL that leads to a link-local address: clouds keep credentials there.

    A name that cannot be looked up now is accepted: the try will fail.
    """
    host = urlsplit(url).hostname or ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for row in found:
        address = ipaddress.ip_address(str(row[4][0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            raise Rejected(f"{host} leads to {address}, where no webhook may lead")


def sign(body: str, alert: str, secret: str, now: float) -> dict[str, str]:
    """Return the headers of one try at `now` (Unix seconds)."""
    at = datetime.fromtimestamp(int(now), UTC)
    return {
        "webhook-id": alert,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(alert, at, body),
        "content-type": "application/json",
        "user-agent": f"gonogo/{__version__}",
    }


def post_alert(
    url: str, secret: str, alert: str, body: AlertBody, now: float, *, timeout_s: float
) -> str | None:
    """Try once to deliver an alert; return the error, None for success. No proxy is asked."""
    text = json.dumps(wire_value(body.model_dump(mode="json")), separators=(",", ":"))
    try:
        check_reach(url)
        headers = sign(text, alert, secret, now)
        with (
            httpx.Client(timeout=timeout_s, trust_env=False, verify=_certificates()) as client,
            client.stream("POST", url, content=text.encode(), headers=headers) as answer,
        ):
            return None if answer.is_success else f"HTTP {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, Rejected, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:300]


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates; reading them takes longer than a try."""
    return httpx.create_ssl_context(trust_env=False)


SETTINGS_WEBHOOK = f"{Kind.WEBHOOK.value}_{'0' * 26}"
"""Id of the subscription that GONOGO_WEBHOOK_URL makes."""
BATCH = 100
EACH = 20
"""Deliveries of one subscription that are taken up at once."""
FIRST_S = 1.0
LONGEST_S = 3_600.0
GIVE_UP_S = 3 * 86_400.0
"""Seconds since the alert after which its delivery has failed."""
THREADS = 8
REST_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One delivery that is due."""

    alert: str
    webhook: str
    url: str
    secret: str
    body: AlertBody
    alerted_at: float


def subscribe(deed: Deed, url: str, types: Collection[str], secret: str | None) -> WebhookRow:
    """Begin a subscription to alerts of these types (none: of every type) and return it."""
    row = WebhookRow(
        id=new_id(Kind.WEBHOOK),
        url=url,
        secret=secret or new_secret(),
        types=sorted(set(types)),
        created_at=deed.now,
    )
    deed.session.add(row)
    return row


def unsubscribe(deed: Deed, webhook: str) -> None:
    """End a subscription."""
    _end(deed.session, load_webhook(deed.session, webhook), deed.now, "the subscription ended")


def subscribe_settings(session: Session, url: str | None, secret: str | None, now: float) -> None:
    """Make the subscription of the environment what the environment says; random secret if none."""
    row = session.get(WebhookRow, SETTINGS_WEBHOOK)
    if url is None:
        if row is not None:
            _end(session, row, now, "the subscription ended")
        return
    if row is None:
        row = WebhookRow(id=SETTINGS_WEBHOOK, url=url, secret="", types=[], created_at=now)
        session.add(row)
    row.url = url
    row.secret = check_secret(secret) if secret else row.secret or new_secret()
    row.disabled_at = None


def _end(session: Session, row: WebhookRow, now: float, why: str) -> None:
    row.disabled_at = row.disabled_at or now
    session.flush()
    session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.webhook == row.id, DeliveryRow.state == DeliveryState.PENDING)
        .values(state=DeliveryState.FAILED, error=why)
    )


def has_unspread(session: Session) -> bool:
    """Say whether an alert has no deliveries yet."""
    query = select(AlertRow.id).where(AlertRow.spread.is_(False)).limit(1)
    return session.scalars(query).first() is not None


def spread_alerts(session: Session, now: float) -> None:
    """Make a delivery for every subscription that wants an alert and is not younger than it."""
    waiting = select(AlertRow).where(AlertRow.spread.is_(False)).order_by(AlertRow.id)
    webhooks = session.scalars(select(WebhookRow).where(WebhookRow.disabled_at.is_(None))).all()
    for alert in session.scalars(waiting.limit(BATCH)).all():
        alert.spread = True
        session.add_all(
            DeliveryRow(
                alert=alert.id,
                webhook=webhook.id,
                state=DeliveryState.PENDING,
                attempts=0,
                due_at=now,
            )
            for webhook in webhooks
            if webhook.created_at <= alert.at and is_wanted(alert, webhook.types)
        )


def is_wanted(alert: AlertRow, types: Collection[str]) -> bool:
    """Say whether a subscription to these types wants an alert, by type or by verdict."""
    verdict = (alert.data.get("decision") or {}).get("verdict") or ""
    return not types or not {alert.type, f"{alert.type}:{verdict.lower()}"}.isdisjoint(types)


def load_due(session: Session, now: float, url: str, skip: Collection[str] = ()) -> list[Parcel]:
    """Return the deliveries that are due, oldest alert first, at most `EACH` per subscription."""
    place = func.row_number().over(partition_by=DeliveryRow.webhook, order_by=DeliveryRow.alert)
    due = (
        select(DeliveryRow.alert, DeliveryRow.webhook, place.label("place"))
        .where(DeliveryRow.state == DeliveryState.PENDING, DeliveryRow.due_at <= now)
        .where(DeliveryRow.webhook.not_in(skip))
        .subquery()
    )
    query = (
        select(AlertRow, WebhookRow)
        .join(due, due.c.alert == AlertRow.id)
        .join(WebhookRow, WebhookRow.id == due.c.webhook)
        .where(due.c.place <= EACH, WebhookRow.disabled_at.is_(None))
        .order_by(AlertRow.id)
    )
    return [
        Parcel(
            alert=alert.id,
            webhook=webhook.id,
            url=webhook.url,
            secret=webhook.secret,
            body=build_body(alert, url),
            alerted_at=alert.at,
        )
        for alert, webhook in session.execute(query)
    ]


def build_body(alert: AlertRow, url: str) -> AlertBody:
    """Return the body of an alert."""
    data = {**alert.data, "alert_id": alert.id, "url": alert_url(alert, url)}
    return AlertBody.model_validate(
        {"type": alert.type, "timestamp": stamp(alert.at), "data": data}
    )


def mark(session: Session, parcel: Parcel, error: str | None, now: float, jitter: float) -> None:
    """Record what came of one try: delivered, to be tried again, or failed for good."""
    row = session.get(DeliveryRow, (parcel.alert, parcel.webhook))
    if row is None or row.state != DeliveryState.PENDING:
        return
    row.attempts += 1
    ring(session, Topic.ALERTS)
    row.error = error
    due_at = next_try_at(row.attempts, parcel.alerted_at, now, jitter)
    if error is None:
        row.state, row.delivered_at = DeliveryState.DELIVERED, now
    elif due_at is None:
        row.state = DeliveryState.FAILED
    else:
        session.flush()
        session.execute(
            update(DeliveryRow)
            .where(DeliveryRow.webhook == parcel.webhook, DeliveryRow.due_at < due_at)
            .where(DeliveryRow.state == DeliveryState.PENDING)
            .values(due_at=due_at)
        )


def retry_delay_s(attempts: int, jitter: float) -> float:
    """Return the seconds to wait after a failed try: `jitter` (0..1) takes up to half off."""
    whole = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts - 1, 30))
    return whole * (0.5 + 0.5 * jitter)


def next_try_at(attempts: int, alerted_at: float, now: float, jitter: float) -> float | None:
    """Return when to try again in Unix seconds, or None to give up."""
    due_at = now + retry_delay_s(attempts, jitter)
    return due_at if due_at - alerted_at <= GIVE_UP_S else None


class Deliveries:
    """Delivers what the outbox holds: one try of a subscription at a time, in alerts' order."""

    def __init__(self, context: Context, *, timeout_s: float = TIMEOUT_S) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="alerts")
        self._busy: set[str] = set()
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
        with self._lock:
            skip = set(self._busy)  # before the read: what they mark may be missing from it
        due = context.store.read(lambda s: load_due(s, context.now(), context.url, skip))
        by_webhook: dict[str, list[Parcel]] = {}
        for parcel in due:
            by_webhook.setdefault(parcel.webhook, []).append(parcel)
        for webhook, parcels in by_webhook.items():
            with self._lock:
                self._busy.add(webhook)
            self._pool.submit(self._carry, webhook, parcels)

    def close(self) -> None:
        """Start no more tries; those under way end by their timeout and are made again."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _carry(self, webhook: str, parcels: list[Parcel]) -> None:
        """Try one subscription's deliveries one after the other; stop at the first that fails."""
        try:
            for parcel in parcels:
                if self._context.closing.is_set() or not self._try(parcel):
                    break
        except Exception:  # noqa: BLE001 - the edge of a thread: logged, and due again
            _log.exception("delivery to %s", webhook, extra={"action": "delivery_failed"})
            self._context.closing.wait(REST_S)
        finally:
            with self._lock:
                self._busy.discard(webhook)

    def _try(self, parcel: Parcel) -> bool:
        store, now, alert = self._context.store, self._context.now, parcel.alert
        error = post_alert(
            parcel.url, parcel.secret, alert, parcel.body, now(), timeout_s=self._timeout_s
        )
        if error is not None:
            _log.warning(
                "alert %s to %s: %s",
                alert,
                parcel.webhook,
                error,
                extra={"action": "alert_not_delivered"},
            )
        jitter = random.random()
        store.write(lambda session: mark(session, parcel, error, now(), jitter))
        return error is None
