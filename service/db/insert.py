"""How are rows inserted that are new, or that may be there already? By Core statements.

The unit of work would insert them too, in several times the CPU.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Table as CoreTable
from sqlalchemy import insert, inspect
from sqlalchemy.orm import Session, make_transient_to_detached
from sqlalchemy.orm.attributes import instance_dict

from service.db.prepared import Prepared
from service.db.schema import Table


def insert_if_new(session: Session, table: type[Table], row: dict[str, Any]) -> bool:
    """Insert a row unless its primary key is there; say whether it was inserted.

    On PostgreSQL this waits for another transaction that is inserting the same key.
    """
    session.flush()
    statement = _statement(session, table).returning(*table.__table__.primary_key)
    return session.connection().execute(statement, row).first() is not None


def is_stored(row: Table) -> bool:
    """Say whether a row has been given to a database; until then it is nobody else's."""
    return inspect(row).has_identity


def insert_added(session: Session) -> None:
    """Insert what was added to a session and is not stored yet; it stays the session's.

    Tables come in the order in which they refer to each other, rows of one in that in which they
    were added. What had been stored and was changed is left to the unit of work.
    """
    connection = session.connection()
    order = _order_of_tables()
    added = sorted(session.new, key=lambda row: order[row.__table__])
    for table, group in groupby(added, type):
        new = _new(table)
        values = []
        for row in group:
            said = instance_dict(row)
            for name, default in new.defaults:  # what was not set is, as it will be read
                said.setdefault(name, default)
            values.append({name: said[name] for name, _ in new.defaults})
        new.insert.run(connection, *values)
    for row in added:
        session.expunge(row)
        make_transient_to_detached(row)
        session.add(row)


@cache
def _order_of_tables() -> dict[CoreTable, int]:
    return {table: place for place, table in enumerate(Table.metadata.sorted_tables)}


@dataclass(frozen=True, slots=True)
class _New:
    """How rows of a table are inserted."""

    insert: Prepared
    defaults: tuple[tuple[str, Any], ...]
    """Of every column its name, and what it is where nothing was said."""


@cache
def _new(table: type[Table]) -> _New:
    core = cast(CoreTable, table.__table__)
    return _New(
        insert=Prepared(insert(core)),
        defaults=tuple((column.key, getattr(column.default, "arg", None)) for column in core.c),
    )


def _statement(session: Session, table: type[Table]) -> Any:
    name = session.get_bind().dialect.name
    dialect = import_module(f"sqlalchemy.dialects.{name}")  # the other one's is not loaded
    return dialect.insert(table.__table__).on_conflict_do_nothing()
