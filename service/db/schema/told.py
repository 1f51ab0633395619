"""What has happened, and who is told of it?"""

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
from sqlalchemy.orm import (
    Mapped,
    mapped_column,
)

from gonogo.contract.api import DeliveryState
from service.db.schema.table import Id, Seconds, Table


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
    """The outbox: an alert that was committed together with what it tells."""

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
