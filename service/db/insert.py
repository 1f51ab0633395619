"""Inserting a row that may be there already."""

from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

from service.db.schema import Table


def insert_if_new(session: Session, table: type[Table], row: dict[str, Any]) -> bool:
    """Insert a row unless its primary key is there; say whether it was inserted.

    On PostgreSQL this waits for another transaction that is inserting the same key.
    """
    session.flush()
    name = session.get_bind().dialect.name
    dialect = import_module(f"sqlalchemy.dialects.{name}")
    statement = dialect.insert(table.__table__).on_conflict_do_nothing()
    returned = statement.returning(*table.__table__.primary_key)
    return session.connection().execute(returned, row).first() is not None
