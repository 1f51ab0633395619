"""How is a statement executed that comes many times a second? Compiled once, by the driver itself.

SQLAlchemy looks a statement up, makes a context and a result of each execution: ten times the CPU
of what a small statement is about. A `Prepared` statement is the same Core statement, compiled at
its first use; from then on its text and its values go to the driver. Columns keep their types, and
errors are SQLAlchemy's. Not for lists of values (IN) nor for columns with defaults of their own:
all that is inserted has to be said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

_Convert = Callable[[Any], Any] | None
Values = Mapping[str, Any]


@dataclass(slots=True)
class _Text:
    """A statement as one driver takes it."""

    sql: str
    named: bool
    """Whether values are told by name; else in order."""
    binds: tuple[tuple[str, Any, _Convert], ...]
    """Of each value its name, what it is where it is not said, and what makes it the driver's."""
    types: tuple[TypeEngine[Any], ...]
    """Of its columns."""
    dialect: Dialect
    convert: tuple[_Convert, ...] | None = None
    """What makes a value of what the driver gives, column by column; known with the first row."""

    def values(self, said: Values) -> Any:
        """Return the values as the driver takes them."""
        given = [
            (name, value if convert is None else convert(value))
            for name, default, convert in self.binds
            for value in (said.get(name, default),)
        ]
        return dict(given) if self.named else [value for _, value in given]

    def rows(
        self, found: Sequence[Sequence[Any]], description: Sequence[Sequence[Any]]
    ) -> list[tuple[Any, ...]]:
        """Return rows with their values as the columns' types have them."""
        if self.convert is None:
            self.convert = tuple(
                kind.dialect_impl(self.dialect).result_processor(self.dialect, told[1])
                for kind, told in zip(self.types, description, strict=True)
            )
        converts = self.convert
        return [
            tuple(
                [
                    value if convert is None else convert(value)
                    for convert, value in zip(converts, row, strict=True)
                ]
            )
            for row in found
        ]


class Prepared:
    """A Core statement whose execution costs little more than the driver's.

    Every execution needs a connection whose transaction has begun (`Session.connection()`).

    Args:
        statement: a select, insert, update or delete; an insert or update without values takes
            those that are said when it is executed.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._texts: dict[tuple[object, ...], _Text] = {}

    def first(self, connection: Connection, said: Values) -> tuple[Any, ...] | None:
        """Execute it and return the first row."""
        return next(iter(self.all(connection, said)), None)

    def all(self, connection: Connection, said: Values) -> list[tuple[Any, ...]]:
        """Execute it and return its rows."""
        text = self._text(connection.dialect, said)
        with _Cursor(connection, text.sql) as cursor:
            cursor.execute(text.sql, text.values(said))
            return text.rows(cursor.fetchall(), cursor.description)

    def run(self, connection: Connection, *rows: Values) -> None:
        """Execute it for each of these; they say the same names."""
        text = self._text(connection.dialect, rows[0])
        with _Cursor(connection, text.sql) as cursor:
            if len(rows) == 1:
                cursor.execute(text.sql, text.values(rows[0]))
            else:
                cursor.executemany(text.sql, [text.values(row) for row in rows])

    def _text(self, dialect: Dialect, said: Values) -> _Text:
        key = (dialect.name, dialect.driver, *said)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _compile(self._statement, dialect, list(said))
        return text


def _compile(statement: Executable, dialect: Dialect, names: list[str]) -> _Text:
    """Return a statement's text for a driver, given the names of what will be said."""
    compiled: SQLCompiler = statement.compile(  # type: ignore[attr-defined]  # every statement has it
        dialect=dialect, column_keys=names, for_executemany=True
    )
    assert not compiled.prefetch, f"nothing is said of {compiled.prefetch}"
    order = compiled.positiontup if compiled.positional else list(compiled.binds)
    assert order is not None
    return _Text(
        sql=compiled.string,
        named=not compiled.positional,
        binds=tuple(
            (
                name,
                compiled.binds[name].effective_value,
                compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect),
            )
            for name in order
        ),
        types=tuple(column.type for column in getattr(statement, "selected_columns", ())),
        dialect=dialect,
    )


def run_text(connection: Connection, sql: str) -> None:
    """Execute a command that takes no values and gives no rows."""
    with _Cursor(connection, sql) as cursor:
        cursor.execute(sql)


class _Cursor:
    """A cursor of a connection's driver, whose errors are SQLAlchemy's."""

    def __init__(self, connection: Connection, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def __enter__(self) -> Any:
        self._cursor = self._connection.connection.cursor()
        return self._cursor

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._cursor.close()
        dialect = self._connection.dialect
        if dialect.dbapi is not None and isinstance(error, dialect.dbapi.Error):
            raise DBAPIError.instance(
                self._sql, None, error, dialect.dbapi.Error, hide_parameters=True, dialect=dialect
            ) from error
