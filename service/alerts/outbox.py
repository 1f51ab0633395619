"""Which alert waits for whom? Rows of the outbox, and what becomes of them.

Alerts are committed together with what they tell (`service.experiments.lifecycle.queue_alert`).
Spreading one makes a delivery for every subscription that wants its type; that and the mark on the
alert are one transaction, so no subscription is forgotten or told of what came before it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from gonogo.contract.api import AlertBody, DeliveryState
from gonogo.contract.ids import Kind
from service.alerts.message import Answer, Target
from service.alerts.schedule import LONGEST_S, next_try_at
from service.db.schema import AlertRow, DeliveryRow, WebhookRow
from service.db.store import Topic, ring
from service.instants import stamp
from service.views.news import alert_url
from service.webhook_secret import check_secret, new_secret

SETTINGS_WEBHOOK = f"{Kind.WEBHOOK.value}_{'0' * 26}"
"""Id of the subscription that GONOGO_WEBHOOK_URL makes."""

BATCH = 100
EACH = 20
"""Deliveries of one subscription that are taken up at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One delivery that is due."""

    alert: str
    webhook: str
    target: Target
    body: AlertBody
    alerted_at: float
    attempts: int


def subscribe_settings(session: Session, url: str | None, secret: str | None, now: float) -> None:
    """Make the environment's subscription what the environment says: one, changed, or none.

    Without a secret of its own it gets a random one: it is signed, and nobody can check it.
    """
    row = session.get(WebhookRow, SETTINGS_WEBHOOK)
    if url is None:
        if row is not None:
            row.disabled_at = row.disabled_at or now
        return
    if row is None:
        row = WebhookRow(id=SETTINGS_WEBHOOK, url=url, secret="", types=[], created_at=now)
        session.add(row)
    row.url = url
    row.secret = check_secret(secret) if secret else row.secret or new_secret()
    row.disabled_at = None


def has_unspread(session: Session) -> bool:
    """Say whether an alert has no deliveries yet."""
    query = select(AlertRow.id).where(AlertRow.spread.is_(False)).limit(1)
    return session.scalars(query).first() is not None


def spread_alerts(session: Session, now: float) -> int:
    """Make a delivery for every subscription that wants an alert; return how many.

    None of an alert of before the subscription; one that begins later than now was made before a
    clock was set back.
    """
    waiting = select(AlertRow).where(AlertRow.spread.is_(False)).order_by(AlertRow.id)
    living = select(WebhookRow).where(WebhookRow.disabled_at.is_(None))
    webhooks = list(session.scalars(living))
    made = 0
    for alert in session.scalars(waiting.limit(BATCH)).all():
        alert.spread = True
        for webhook in webhooks:
            was_there = webhook.created_at <= alert.at or webhook.created_at > now
            if was_there and is_wanted(alert, webhook.types):
                row = DeliveryRow(
                    alert=alert.id,
                    webhook=webhook.id,
                    state=DeliveryState.PENDING,
                    attempts=0,
                    due_at=now,
                )
                session.add(row)
                made += 1
    return made


def is_wanted(alert: AlertRow, types: Collection[str]) -> bool:
    """Say whether a subscription to these types is told: by its type, or a decision's verdict."""
    verdict = (alert.data.get("decision") or {}).get("verdict") or ""
    return not types or not {alert.type, f"{alert.type}:{verdict.lower()}"}.isdisjoint(types)


def load_due(session: Session, now: float, url: str, skip: Collection[str] = ()) -> list[Parcel]:
    """Return the deliveries that are due, oldest alert first, so many of each subscription.

    What waits for one subscription, however much that is, hides nothing that waits for another.
    One that is due later than any try is put off was put off by a clock that was set back since.

    Args:
        session: reads.
        now: Unix seconds.
        url: where people reach this service.
        skip: subscriptions that are told nothing now.
    """
    place = func.row_number().over(partition_by=DeliveryRow.webhook, order_by=DeliveryRow.alert)
    due = (
        select(DeliveryRow.alert, DeliveryRow.webhook, place.label("place"))
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook)
        .where(DeliveryRow.state == DeliveryState.PENDING)
        .where(or_(DeliveryRow.due_at <= now, DeliveryRow.due_at > now + LONGEST_S))
        .where(WebhookRow.disabled_at.is_(None), DeliveryRow.webhook.not_in(skip))
        .subquery()
    )
    query = (
        select(DeliveryRow, AlertRow, WebhookRow)
        .join(
            due,
            (due.c.alert == DeliveryRow.alert) & (due.c.webhook == DeliveryRow.webhook),
        )
        .join(AlertRow, AlertRow.id == DeliveryRow.alert)
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook)
        .where(due.c.place <= EACH)
        .order_by(DeliveryRow.alert)
    )
    return [
        Parcel(
            alert=alert.id,
            webhook=webhook.id,
            target=Target(url=webhook.url, secret=webhook.secret),
            body=build_body(alert, url),
            alerted_at=alert.at,
            attempts=delivery.attempts,
        )
        for delivery, alert, webhook in session.execute(query)
    ]


def build_body(alert: AlertRow, url: str) -> AlertBody:
    """Return the body that tells of an alert."""
    data = {**alert.data, "alert_id": alert.id, "url": alert_url(alert, url)}
    return AlertBody.model_validate(
        {"type": alert.type, "timestamp": stamp(alert.at), "data": data}
    )


def mark(session: Session, parcel: Parcel, answer: Answer, now: float, jitter: float) -> None:
    """Record what came of one try: delivered, to be tried again, or failed for good."""
    row = session.get(DeliveryRow, (parcel.alert, parcel.webhook))
    if row is None or row.state != DeliveryState.PENDING:
        return
    row.attempts += 1
    ring(session, Topic.ALERTS)
    row.error = answer.error
    if answer.error is None:
        row.state, row.delivered_at = DeliveryState.DELIVERED, now
        return
    due_at = next_try_at(
        attempts=row.attempts, alerted_at=parcel.alerted_at, now=now, jitter=jitter
    )
    if answer.gone:
        end_subscription(session, parcel.webhook, now, "the receiver is gone (HTTP 410)")
    elif due_at is None:
        row.state = DeliveryState.FAILED
    else:
        row.due_at = due_at


def end_subscription(session: Session, webhook: str, now: float, why: str) -> None:
    """End a subscription, and with it what still waits for it."""
    row = session.get_one(WebhookRow, webhook)
    row.disabled_at = row.disabled_at or now
    fail_waiting(session, webhook, why)


def fail_waiting(session: Session, webhook: str, why: str) -> None:
    """Give up every delivery that waits for a subscription."""
    session.flush()
    session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.webhook == webhook, DeliveryRow.state == DeliveryState.PENDING)
        .values(state=DeliveryState.FAILED, error=why)
    )


def load_orphaned(session: Session) -> list[str]:
    """Return the ended subscriptions that something still waits for."""
    query = (
        select(DeliveryRow.webhook)
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook)
        .where(DeliveryRow.state == DeliveryState.PENDING, WebhookRow.disabled_at.is_not(None))
        .distinct()
    )
    return list(session.scalars(query))


def fail_orphaned(session: Session) -> None:
    """Give up whatever waits for an ended subscription."""
    for webhook in load_orphaned(session):
        fail_waiting(session, webhook, "the subscription ended")
