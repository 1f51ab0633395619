"""Alerts, their deliveries and subscriptions."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gonogo.contract.api import DeliveryState
from gonogo.contract.errors import NotFound
from gonogo.contract.ids import Kind, is_id
from service.db.schema import AlertRow, DeliveryRow, WebhookRow
from service.queries.page import load_page

AlertAndDeliveries = tuple[AlertRow, list[DeliveryRow]]
"""An alert and its deliveries."""


def load_alerts(
    session: Session, *, limit: int, after: str | None
) -> tuple[list[AlertAndDeliveries], str | None]:
    """Return a page of alerts, newest first, each with its deliveries."""
    query = select(AlertRow)
    rows, cursor = load_page(
        session, query, AlertRow.id, limit=limit, after=after, newest_first=True
    )
    made = select(DeliveryRow).where(DeliveryRow.alert.in_([row.id for row in rows]))
    deliveries: dict[str, list[DeliveryRow]] = {}
    for delivery in session.scalars(made):
        deliveries.setdefault(delivery.alert, []).append(delivery)
    return [(row, deliveries.get(row.id, [])) for row in rows], cursor


def count_undelivered(session: Session) -> int:
    """Return how many alerts are on their way: deliveries to be made, and alerts not spread."""
    pending = DeliveryRow.state == DeliveryState.PENDING.value
    waiting = select(func.count()).select_from(DeliveryRow).where(pending)
    fresh = select(func.count()).select_from(AlertRow).where(AlertRow.spread.is_(False))
    return session.scalars(waiting).one() + session.scalars(fresh).one()


def load_webhook(session: Session, webhook: str) -> WebhookRow:
    """Return an active subscription.

    Raises:
        NotFound: there is none, or it has ended.
    """
    row = session.get(WebhookRow, webhook) if is_id(webhook, Kind.WEBHOOK) else None
    if row is None or row.disabled_at is not None:
        raise NotFound(f"there is no webhook {webhook}")
    return row


def load_webhooks(
    session: Session, *, limit: int, after: str | None
) -> tuple[Sequence[WebhookRow], str | None]:
    """Return a page of the active subscriptions, oldest first."""
    query = select(WebhookRow).where(WebhookRow.disabled_at.is_(None))
    return load_page(session, query, WebhookRow.id, limit=limit, after=after)
