"""Opening and closing a database: pragmas of SQLite, time limits of PostgreSQL."""

from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url

_POSTGRES = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Settings of each connection, so that one to a dead host ends within a minute."""
_SERVER = {
    "tcp_keepalives_idle": "15s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    "statement_timeout": "30s",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Settings of the server for each connection; the lock of a dead conductor is free as soon."""
_BUSY_S = 30.0
_JOURNAL_BYTES = 4 * 2**20


def build_engine(url: str, *, writes: bool = False) -> Engine:
    """Return an engine; a SQLite engine for `writes` takes the write lock when it begins.

    Args:
        writes: whether it is the writer's.
    """
    if not is_sqlite(url):
        return create_engine(
            url,
            pool_size=10,
            max_overflow=30,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=postgres_arguments(url),
        )
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
    )

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
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def is_sqlite(url: str) -> bool:
    """Say whether a URL names a SQLite database."""
    return make_url(url).get_backend_name() == "sqlite"


def postgres_arguments(url: str) -> dict[str, Any]:
    """Return the arguments of every connection to PostgreSQL; those of the URL win."""
    options = " ".join(f"-c {name}={value}" for name, value in _SERVER.items())
    return {**_POSTGRES, "options": options, **make_url(url).query}
