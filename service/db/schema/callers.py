"""Tables of callers and receivers: keys, sessions, workers, events, alerts, webhooks."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from gonogo.contract.api import DeliveryState
from service.db.columns import OneOf
from service.db.documents import ClaimKept, SessionKind
from service.db.schema.table import Id, Seconds, Table


class KeyRow(Table):
    """An API key, by its hash."""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(20))
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(Seconds)
    revoked_at: Mapped[float | None] = mapped_column(Seconds)
    home: Mapped[str | None] = mapped_column(String(12))
    """For a local key: its owner; several services may share one database."""
    worker: Mapped[str | None] = mapped_column(String(128))
    """For a worker's key: the worker that claimed first with it; no other may."""
    in_place_of: Mapped[str | None] = mapped_column(Id)
    """For a local worker's key: the one that lay in its home before, where that is elsewhere
    now."""


class SessionRow(Table):
    """A browser's session, or a one-time link to one, by the hash of its token."""

    __tablename__ = "sessions"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"))
    """The API key whose rights it has; when that is revoked, so is this."""
    kind: Mapped[SessionKind] = mapped_column(OneOf(SessionKind, 10))
    created_at: Mapped[float] = mapped_column(Seconds)
    expires_at: Mapped[float] = mapped_column(Seconds, index=True)


class WorkerRow(Table):
    """A worker, as its last claim described it."""

    __tablename__ = "workers"
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    machine: Mapped[str | None] = mapped_column(String(32))
    """Machine id of its host; null: unknown."""
    seen_at: Mapped[float] = mapped_column(Seconds)
    draining: Mapped[bool] = mapped_column(Boolean, default=False)
    claim: Mapped[ClaimKept]


class EpochRow(Table):
    """The one row of fencing epochs: that of the service that started last."""

    __tablename__ = "epochs"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    n: Mapped[int] = mapped_column(BigInteger)


class IdempotencyRow(Table):
    """The stored answer of a creating POST."""

    __tablename__ = "idempotency"
    actor: Mapped[str] = mapped_column(String(40), primary_key=True)
    route: Mapped[str] = mapped_column(String(120), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_digest: Mapped[str] = mapped_column(String(64))
    answer: Mapped[dict[str, Any] | None]
    created_at: Mapped[float] = mapped_column(Seconds, index=True)


class EventRow(Table):
    """Something that happened. `seq` orders an experiment's, `cursor` all of them."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("experiment", "seq"),
        Index("ix_events_cursor", "cursor", unique=True),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(Integer)
    cursor: Mapped[int | None] = mapped_column(BigInteger)
    """Given by the one conductor after the commit: sequences are not commit-ordered."""
    type: Mapped[str] = mapped_column(String(40))
    run: Mapped[str | None] = mapped_column(Id)
    phase: Mapped[str | None] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Seconds)
    data: Mapped[dict[str, Any]]


class AlertRow(Table):
    """The outbox: an alert that was committed together with what it reports."""

    __tablename__ = "alerts"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    type: Mapped[str] = mapped_column(String(40))
    experiment: Mapped[str | None] = mapped_column(Id, index=True)
    run: Mapped[str | None] = mapped_column(Id)
    data: Mapped[dict[str, Any]]
    """AlertData, without `url`."""
    at: Mapped[float] = mapped_column(Seconds)
    spread: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether a delivery stands for every subscription that wants it."""


class WebhookRow(Table):
    """A subscription: where alerts of which types go."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(Text)
    types: Mapped[list[str]]
    """Alert types; empty = every type."""
    created_at: Mapped[float] = mapped_column(Seconds)
    disabled_at: Mapped[float | None] = mapped_column(Seconds)


class DeliveryRow(Table):
    """One alert on its way to one subscription."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_state_due_at", "state", "due_at"),)
    alert: Mapped[str] = mapped_column(
        ForeignKey("alerts.id", ondelete="CASCADE"), primary_key=True
    )
    webhook: Mapped[str] = mapped_column(
        ForeignKey("webhooks.id", ondelete="CASCADE"), primary_key=True
    )
    state: Mapped[DeliveryState] = mapped_column(default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    due_at: Mapped[float] = mapped_column(Seconds)
    delivered_at: Mapped[float | None] = mapped_column(Seconds)
    error: Mapped[str | None] = mapped_column(Text)
