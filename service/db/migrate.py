"""How does a database come to the newest schema? Alembic, run by every start that finds another.

SQLite is migrated with foreign keys off and checked afterwards (a batch migration of a parent
table with them on deletes every child). A new file is its owner's alone, for it holds what signs
webhooks and the ends of logs; SQLite gives the files beside it the same mode. On PostgreSQL an
advisory lock lets one start migrate.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from gonogo.contract.errors import Conflict, Corrupt, Unavailable
from gonogo.contract.made_by import READS_BEFORE
from gonogo.files import close_to_others
from service.db.engine import is_sqlite, told_to_postgres

if TYPE_CHECKING:  # its import takes longer than to find that there is nothing to migrate
    from alembic.config import Config

_log = logging.getLogger(__name__)

FIRST = "1001"
"""The revision with which the history of migrations begins."""
HEAD = "1001"
"""The newest revision."""
_LOCK = 0x676F6E6F67
_REFUSED = {
    "42501": "its role may not: it needs USAGE and CREATE in the schema, and to own the tables",
    "25006": "it is read-only",
}
"""How PostgreSQL refuses a role, or takes no writes → what that means here."""
_ROOT = Path(__file__).resolve().parents[2]


def build_config(connection: Connection | None = None) -> "Config":
    """Return Alembic's configuration, bound to a connection when given."""
    from alembic.config import Config

    config = Config()
    migrations = str(_ROOT / "migrations").replace("%", "%%")
    config.set_main_option("script_location", migrations)
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def migrate(url: str) -> None:
    """Bring the database at `url` to the newest revision; one that has it is left alone.

    Raises:
        Conflict: the database is that of a newer release, or of an earlier form.
        Corrupt: a SQLite database whose foreign keys do not hold afterwards.
        Unavailable: as `current_revision`; or PostgreSQL refuses it.
    """
    found, _ = current_revision(url)
    _check_known(found)
    _close_to_others(url)
    if found == HEAD:
        return
    from alembic import command

    engine = _connecting(url)
    if is_sqlite(url):
        _make_private(make_url(url).database)

        @event.listens_for(engine, "connect")
        def on_connect(connection: object, _: object) -> None:
            connection.isolation_level = None  # type: ignore[attr-defined]  # sqlite3.Connection
            for pragma in ("foreign_keys=OFF", "auto_vacuum=INCREMENTAL"):  # the latter: when new
                connection.execute(f"PRAGMA {pragma}")  # type: ignore[attr-defined]

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    with _explained("be migrated"), engine.begin() as connection:
        if not is_sqlite(url):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        command.upgrade(build_config(connection), HEAD)
        if is_sqlite(url):
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
            if broken:
                raise Corrupt(f"after the migration {len(broken)} rows refer to nothing")
    engine.dispose()
    if found is not None:  # of a new database there is nothing to tell
        _log.info("brought the database from revision %s to %s", found, HEAD)


def _check_known(found: str | None) -> None:
    """Refuse a database that this release does not know.

    Raises:
        Conflict: its revision is newer, or before the first.
    """
    if found is not None and found < FIRST:
        raise Conflict(f"the database has revision {found} of an earlier form; {READS_BEFORE}")
    if found is not None and found > HEAD:
        raise Conflict(
            f"the database has revision {found}, of a newer release; this one knows {HEAD}: start"
            " that release again, or bring back a backup of before it"
        )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say in a line what PostgreSQL does not let this role do; every other error stays.

    Raises:
        Unavailable: so it is.
    """
    try:
        yield
    except DBAPIError as error:
        means = _REFUSED.get(getattr(error.orig, "sqlstate", None) or "")
        if means is None:
            raise
        said = str(error.orig).partition("\n")[0]
        raise Unavailable(f"the database cannot {what}: {said}: {means}") from error


def _make_private(file: str | None) -> None:
    """Make a database's file that is not there yet, for its owner alone."""
    if file and file != ":memory:":
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _close_to_others(url: str) -> None:
    """Close a SQLite database that a release before left open to all, and what it is locked by."""
    file = make_url(url).database if is_sqlite(url) else None
    for ending in ("", "-wal", "-shm") if file else ():
        close_to_others(Path(f"{file}{ending}"))


def _size_of(file: str) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0


def _connecting(url: str) -> Engine:
    """Return an engine that keeps no connection."""
    told = {} if is_sqlite(url) else told_to_postgres(url)
    return create_engine(url, poolclass=NullPool, connect_args=told)


def current_revision(url: str) -> tuple[str | None, str]:
    """Return the revision of the database and the newest one; None: there is no database.

    Raises:
        Unavailable: it cannot be opened, or read by this role; or SQLite's file is gone and its
            log is not, which would be played into a new one.
    """
    file = make_url(url).database if is_sqlite(url) else None
    logs = (f"{file}-wal", f"{file}-wal.aside") if file and not _size_of(file) else ()
    for log in filter(_size_of, logs):
        raise Unavailable(
            f"{file} is gone or empty, and what was last written to it is not ({log}): put the"
            " database back, or move its log away"
        )
    if file and not Path(file).exists():
        return None, HEAD  # SQLite would make it
    engine = _connecting(url)
    try:
        with _explained("be read"), engine.connect() as connection:
            found = None
            if inspect(connection).has_table("alembic_version"):
                found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    except OperationalError as error:
        raise Unavailable(f"the database cannot be opened: {error.orig}") from error
    finally:
        engine.dispose()
    return found, HEAD
