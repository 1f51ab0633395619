"""How is a database opened and closed? Pragmas of SQLite, and time limits of PostgreSQL."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import QueuePool

from service.db.prepared import run_text

TEXTS = {"client_encoding": "utf8"}
"""Told to PostgreSQL: of a database without an encoding (SQL_ASCII) texts would come as bytes."""
NEARBY = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How soon a connection ends whose host is gone (a power cut, a fail-over): it says nothing, and
the kernel's own two hours would hold whoever asked. What the URL says of these counts."""
_AT_THE_SERVER = {
    "tcp_keepalives_idle": "15s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
}
"""The same the other way round: what a service held whose host is gone, the right to conduct among
it, is free again as soon."""
_BUSY_S = 30.0
_JOURNAL_BYTES = 4 * 2**20
_LIMITS = {
    "statement_timeout": "30s",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
}
_CLOSE_S = 5.0
_CLOSE_POLL_S = 0.01
_log = logging.getLogger(__name__)


def build_engine(
    url: str, *, writes: bool = False, before_connect: Callable[[], None] | None = None
) -> Engine:
    """Return an engine; a SQLite one for `writes` takes the write lock when it begins.

    Args:
        url: a SQLAlchemy URL.
        writes: whether it is the writer's.
        before_connect: called before SQLite opens the file; what it raises keeps it closed.
    """
    if not is_sqlite(url):
        return create_engine(
            url,
            pool_size=10,
            max_overflow=30,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=told_to_postgres(url, _LIMITS),
        )
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
    )

    if before_connect is not None:

        @event.listens_for(engine, "do_connect")
        def on_opening(*_: Any) -> None:
            before_connect()

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"journal_size_limit={_JOURNAL_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        run_text(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def is_sqlite(url: str) -> bool:
    """Say whether a URL names a SQLite database."""
    return make_url(url).get_backend_name() == "sqlite"


def told_to_postgres(url: str, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what is told to PostgreSQL's driver of every connection; what a URL says counts.

    Args:
        url: a SQLAlchemy URL.
        settings: more that the server is told.
    """
    said = make_url(url).query
    near = {name: value for name, value in NEARBY.items() if name not in said}
    ours = [f"-c {name}={value}" for name, value in {**_AT_THE_SERVER, **(settings or {})}.items()]
    theirs = said.get("options", "")
    theirs = theirs if isinstance(theirs, str) else " ".join(theirs)
    return {**TEXTS, **near, "options": " ".join([*ours, theirs]).strip()}


def dispose(engine: Engine) -> None:
    """Close an engine's connections; one that is in use would come back to a pool that is gone."""
    deadline = time.monotonic() + _CLOSE_S
    while isinstance(engine.pool, QueuePool) and engine.pool.checkedout():
        if time.monotonic() > deadline:
            _log.warning("closed the database under a reader", extra={"action": "db_closed_early"})
            break
        time.sleep(_CLOSE_POLL_S)
    engine.dispose()
