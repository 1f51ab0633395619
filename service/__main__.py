"""The command line of the control plane: `python -m service serve|db|keys|backup|restore`."""

import argparse
import json
import logging
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import DatabaseError, OperationalError

from gonogo.contract.errors import GonogoError, NotAllowed, NotFound, Rejected, Unavailable
from service.context import open_context
from service.db.store import NO_ANSWER_TEXT, current_revision, migrate
from service.http.auth import Role, adopt_key, create_key, revoke_key
from service.queries.callers import load_keys
from service.settings import Settings, load_settings
from service.text import instant

_SHORTEST_KEY = 32
EXITS = ((NotFound, 3), (NotAllowed, 4), (Rejected, 2), (Unavailable, 5))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("serve", help="run the control plane")
    run.add_argument("--host", default="127.0.0.1", help="address to listen on")
    run.add_argument("--port", type=int, default=8750, help="port; 0 takes a free one")
    run.add_argument("--no-conduct", action="store_true", help="serve requests only")
    database = commands.add_parser("db", help="look after the database")
    database.add_argument("action", choices=("upgrade", "current"))
    keys = commands.add_parser("keys", help="look after API keys")
    actions = keys.add_subparsers(dest="action", required=True)
    actions.add_parser("list")
    create = actions.add_parser("create")
    create.add_argument("name")
    create.add_argument("--role", choices=[role.value for role in Role], default="operator")
    create.add_argument("--file", type=Path, help="the file that holds the key")
    actions.add_parser("revoke").add_argument("name")
    keep = commands.add_parser("backup", help="keep database, decisions and keys in one file")
    keep.add_argument("file", type=Path)
    keep.add_argument("--runs", action="store_true", help="and the run directories")
    commands.add_parser("restore", help="bring a backup back").add_argument("file", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        settings = load_settings()
        logging.basicConfig(
            level=settings.log.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("alembic").setLevel(logging.WARNING)  # `migrate` says what was done
        if arguments.command == "serve":
            from service.app import serve  # its imports take longer than looking at keys

            settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            serve(settings, arguments.host, arguments.port, conduct=not arguments.no_conduct)
        elif arguments.command == "db":
            _database(settings, arguments.action)
        elif arguments.command == "keys":
            _keys(settings, arguments)
        else:
            from service.backup import make_backup, restore_backup

            if arguments.command == "backup":
                done = make_backup(settings, arguments.file, time.time(), runs=arguments.runs)
            else:
                done = restore_backup(settings, arguments.file)
            print(json.dumps(done))
    except GonogoError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        return next((code for kind, code in EXITS if isinstance(error, kind)), 1)
    except OperationalError as error:
        print(f"error: {NO_ANSWER_TEXT}: {error.orig}", file=sys.stderr)
        return 5
    except (DatabaseError, sqlite3.DatabaseError) as error:
        place, said = make_url(settings.database_url).database, getattr(error, "orig", error)
        print(f"error: the database {place}: {said}; see `gonogo restore`", file=sys.stderr)
        return 1
    return 0


def _database(settings: Settings, action: str) -> None:
    if action == "upgrade":
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        migrate(settings.database_url)
    found, newest = current_revision(settings.database_url)
    print(json.dumps({"revision": found, "newest": newest}))


def _keys(settings: Settings, arguments: argparse.Namespace) -> None:
    if arguments.action == "create":
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        migrate(settings.database_url)
    elif not _has_database(settings):
        if arguments.action == "revoke":
            raise NotFound(f"there is no key called {arguments.name}: there is no database yet")
        return
    context = open_context(settings)
    store, now = context.store, context.now()
    try:
        if arguments.action == "create":
            role, name, key = Role(arguments.role), arguments.name, None
            if arguments.file is None:
                key = store.write(lambda session: create_key(session, name, role, now))
            else:
                given = _load_key_file(arguments.file)
                store.write(lambda session: adopt_key(session, name, role, given, now))
            print(json.dumps({"name": name, "role": role, "key": key}))
        elif arguments.action == "revoke":
            store.write(lambda session: revoke_key(session, arguments.name, now))
            print(json.dumps({"name": arguments.name, "revoked": True}))
        else:
            for row in store.read(load_keys):
                times = {
                    "created_at": instant(row.created_at),
                    "revoked_at": instant(row.revoked_at),
                }
                print(json.dumps({"name": row.name, "role": row.role, **times}))
    finally:
        store.close()


def _load_key_file(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} cannot be read: {error}") from error
    if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise Rejected(f"{path} holds no key: expected {_SHORTEST_KEY} or more ASCII characters")
    return key


def _has_database(settings: Settings) -> bool:
    """Say whether there is a database of this version; a reader makes none."""
    found, newest = current_revision(settings.database_url)
    if found is not None and found != newest:
        raise Rejected(f"the database is at revision {found}, not {newest}: gonogo db upgrade")
    return found is not None


if __name__ == "__main__":
    sys.exit(main())
