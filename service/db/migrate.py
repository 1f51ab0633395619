"""Creating the schema of a new database with Alembic, at the first start.

On PostgreSQL an advisory lock lets one start migrate.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from gonogo.contract.errors import Conflict, Unavailable
from service.db.store import build_engine, is_sqlite

if TYPE_CHECKING:  # the import is slow, and most starts need no migration
    from alembic.config import Config

HEAD = "1002"
_LOCK = 0x676F6E6F67
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
    """Bring the database at `url` to the newest revision."""
    found, _ = current_revision(url)
    if found == HEAD:
        return
    if found is not None:
        raise Conflict(
            f"the database has revision {found}, of another release; this one knows {HEAD}: start"
            " that release again, or restore a backup of this one"
        )
    from alembic import command

    file = make_url(url).database if is_sqlite(url) else None
    if file and file != ":memory:":
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    engine = build_engine(url, writes=True)
    try:
        with engine.begin() as connection:
            if not is_sqlite(url):
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            command.upgrade(build_config(connection), HEAD)
    except (InternalError, OperationalError, ProgrammingError) as error:
        raise Unavailable(
            f"the database cannot be migrated: {_line_of(error)}; its role must own it, on a server"
            " that takes writes"
        ) from error
    finally:
        engine.dispose()


def current_revision(url: str) -> tuple[str | None, str]:
    """Return the revision of the database and the newest one; None: there is no database."""
    file = make_url(url).database if is_sqlite(url) else None
    if file and not Path(file).exists():
        return None, HEAD  # SQLite would make it
    engine = build_engine(url)
    try:
        with engine.connect() as connection:
            found = None
            if inspect(connection).has_table("alembic_version"):
                found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    except (OperationalError, ProgrammingError) as error:
        raise Unavailable(f"the database cannot be opened: {_line_of(error)}") from error
    finally:
        engine.dispose()
    return found, HEAD


def _line_of(error: DBAPIError) -> str:
    return str(error.orig).partition("\n")[0]
