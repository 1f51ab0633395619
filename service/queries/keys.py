"""API keys, and which of them are not revoked."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.schema import KeyRow


def load_keys(session: Session) -> Sequence[KeyRow]:
    """Return every key, revoked ones included, oldest first."""
    return session.scalars(select(KeyRow).order_by(KeyRow.created_at)).all()


def load_living_key(session: Session, name: str) -> KeyRow | None:
    """Return the key of this name that is not revoked, if any."""
    query = select(KeyRow).where(KeyRow.name == name, KeyRow.revoked_at.is_(None))
    return session.scalars(query).first()


def lock_living_keys(session: Session) -> None:
    """Wait for whoever else decides now whose a key is, and read anew what they decided."""
    query = select(KeyRow).where(KeyRow.revoked_at.is_(None)).order_by(KeyRow.id)
    session.scalars(query.with_for_update().execution_options(populate_existing=True)).all()


def load_living_keys_of(session: Session, worker: str) -> Sequence[KeyRow]:
    """Return the keys that belong to a worker and are not revoked, oldest first."""
    query = select(KeyRow).where(KeyRow.worker == worker, KeyRow.revoked_at.is_(None))
    return session.scalars(query.order_by(KeyRow.created_at, KeyRow.id)).all()


def load_living_ids(session: Session, keys: Sequence[str]) -> frozenset[str]:
    """Return which of these keys, by id, are not revoked."""
    query = select(KeyRow.id).where(KeyRow.id.in_(keys), KeyRow.revoked_at.is_(None))
    return frozenset(session.scalars(query))
