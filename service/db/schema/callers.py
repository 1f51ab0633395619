"""Who calls: keys, sessions, workers, and what they asked before?"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Integer,
    String,
    Text,
)
from sqlalchemy.orm import (
    Mapped,
    mapped_column,
)

from service.db.columns import OneOf
from service.db.documents import (
    ClaimKept,
    SessionKind,
)
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
    """Of a local key: whose it is; several services may share one database."""
    worker: Mapped[str | None] = mapped_column(String(128))
    """Of a worker's key: who claimed first with it; nobody else may."""
    in_place_of: Mapped[str | None] = mapped_column(Id)
    """Of a local worker's key: the one that lay in its home before, where that is elsewhere now."""


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
    """What tells its host from every other, whatever its name; null: a worker of before."""
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
