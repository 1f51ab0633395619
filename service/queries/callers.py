"""Queries of keys, workers, alerts and subscriptions."""

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gonogo.contract.api import DeliveryState
from gonogo.contract.errors import NotFound
from gonogo.contract.wire import Kind, is_id
from service.db.schema import AlertRow, DeliveryRow, KeyRow, WebhookRow, WorkerRow
from service.queries.experiments import load_page


def load_keys(session: Session) -> Sequence[KeyRow]:
    """Return every key, revoked ones included, oldest first."""
    return session.scalars(select(KeyRow).order_by(KeyRow.created_at)).all()


def load_living_key(session: Session, name: str) -> KeyRow | None:
    """Return the key of this name that is not revoked, if any."""
    query = select(KeyRow).where(KeyRow.name == name, KeyRow.revoked_at.is_(None))
    return session.scalars(query).first()


def lock_living_keys(session: Session) -> None:
    """Lock the keys that are not revoked, and read their workers again."""
    query = select(KeyRow).where(KeyRow.revoked_at.is_(None)).order_by(KeyRow.id)
    session.scalars(query.with_for_update().execution_options(populate_existing=True)).all()


def load_living_keys_of(session: Session, worker: str) -> Sequence[KeyRow]:
    """Return the keys that belong to a worker and are not revoked, oldest first."""
    query = select(KeyRow).where(KeyRow.worker == worker, KeyRow.revoked_at.is_(None))
    return session.scalars(query.order_by(KeyRow.created_at, KeyRow.id)).all()


def is_living(session: Session, key: str) -> bool:
    """Say whether a key, by id, is there and not revoked."""
    row = session.get(KeyRow, key)
    return row is not None and row.revoked_at is None


def load_workers(session: Session) -> Sequence[WorkerRow]:
    """Return every worker that ever claimed, the one heard of last first."""
    return session.scalars(select(WorkerRow).order_by(WorkerRow.seen_at.desc())).all()


def load_workers_named(session: Session, names: Collection[str]) -> Sequence[WorkerRow]:
    """Return the workers of these names."""
    if not names:
        return ()
    return session.scalars(select(WorkerRow).where(WorkerRow.name.in_(names))).all()


def load_workers_page(
    session: Session, *, limit: int, after: str | None
) -> tuple[Sequence[WorkerRow], str | None]:
    """Return a page of the workers by name."""
    return load_page(session, select(WorkerRow), WorkerRow.name, limit=limit, after=after)


AlertAndDeliveries = tuple[AlertRow, list[DeliveryRow]]


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
    """Return an active subscription."""
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
