"""How is a row inserted that may be there already? Without an error, on either database."""

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.schema import Table


def insert_if_new(session: Session, table: type[Table], row: dict[str, Any]) -> bool:
    """Insert a row unless its primary key is there; say whether it was inserted.

    On PostgreSQL this waits for another transaction that is inserting the same key.
    """
    session.flush()
    statement = _statement(session, table).returning(*table.__table__.primary_key)
    return session.connection().execute(statement, row).first() is not None


def _statement(session: Session, table: type[Table]) -> Any:
    name = session.get_bind().dialect.name
    insert = postgresql.insert if name == "postgresql" else sqlite.insert
    return insert(table.__table__).on_conflict_do_nothing()  # type: ignore[arg-type]  # a Table
