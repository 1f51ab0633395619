"""Commands for keys, database and backups, on the service's own host.

All run `python -m service`, which answers in JSON, a line each.
"""

import json
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gonogo.cli.output import (
    Json,
    ago,
    err,
    out,
    print_fields,
    print_json,
    print_lines,
    print_list,
)
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import application_argv, application_env
from gonogo.contract.errors import Rejected
from gonogo.planning.resolve import checkout_root


class DatabaseAction(StrEnum):
    """What can be done with the database."""

    STATUS = "status"
    CURRENT = "current"
    UPGRADE = "upgrade"


class KeyAction(StrEnum):
    """What can be done with keys."""

    LIST = "list"
    CREATE = "create"
    REVOKE = "revoke"


class KeyRole(StrEnum):
    """What a key may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


def ask_service(*arguments: str) -> list[dict[str, Any]]:
    """Return the JSON lines that `python -m service` answers with."""
    done = subprocess.run(
        application_argv("service", *arguments),
        env=application_env(load_settings().inherited),
        cwd=checkout_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stderr.splitlines():
        problem = line.removeprefix("error: ")
        print_lines([line if problem == line else f"gonogo: {problem}"], err)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def db(
    action: Annotated[
        DatabaseAction, typer.Argument(help="What to do; current is another word for status.")
    ] = DatabaseAction.STATUS,
    as_json: Json = False,
) -> None:
    """Say which schema the database has, or bring it to the newest (upgrade)."""
    upgrades = action is DatabaseAction.UPGRADE
    (state,) = ask_service("db", "upgrade" if upgrades else "current")
    if as_json:
        print_json(state)
        return
    found, newest = state["revision"], state["newest"]
    if found is None:
        text = "none yet; `gonogo up` or `gonogo db upgrade` makes it"
    elif found == newest:
        text = f"revision {found}, the newest"
    elif found > newest:
        text = f"revision {found}, of a newer release; this one knows {newest}"
    else:
        text = f"revision {found}; bring it to {newest} with: gonogo db upgrade"
    print_fields({"database": text})


def keys(
    action: Annotated[KeyAction, typer.Argument(help="What to do.")] = KeyAction.LIST,
    name: Annotated[str | None, typer.Argument(help="Name of the key.")] = None,
    role: Annotated[KeyRole, typer.Option(help="What a created key may do.")] = KeyRole.OPERATOR,
    file: Annotated[
        Path | None,
        typer.Option(help="Create: take the key that this file holds; a former one is revoked."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List, create or revoke API keys (on the service's own host)."""
    if action is KeyAction.LIST:
        rows = ask_service("keys", "list")
        print_list(
            {"items": rows},
            rows,
            {
                "name": "name",
                "role": "role",
                "state": lambda row: (
                    f"revoked {ago(row['revoked_at'])}"
                    if row["revoked_at"]
                    else "[green]valid[/green]"
                ),
                "created": lambda row: ago(row["created_at"]),
            },
            as_json=as_json,
            empty="no keys yet: the first `gonogo up` makes the local ones",
            cut=("name",),
            optional=("created",),
        )
        return
    if name is None:
        raise Rejected(f"keys {action}: give the name of the key")
    more = ["--role", role] if action is KeyAction.CREATE else []
    if file is not None:
        if action is not KeyAction.CREATE:
            raise Rejected(f"keys {action}: --file goes with create")
        more += ["--file", str(file.absolute())]
    (answer,) = ask_service("keys", action, name, *more)
    if as_json:
        print_json(answer)
    elif action is KeyAction.CREATE and file is not None:
        out.print(f"{escape(name)}, {role}: the key in {escape(str(file))} is valid")
    elif action is KeyAction.CREATE:
        err.print(f"{name}, {role}: keep this key, it is not shown again", highlight=False)
        print(answer["key"])
    else:
        out.print(f"{escape(name)} is revoked")


PG_DUMP = (
    "the database is PostgreSQL and not in this file; keep it with"
    " `pg_dump --format=custom --file=gonogo.dump`, now, after this"
)
PG_RESTORE = "bring its database back with `pg_restore`, before the service starts"


def backup(
    file: Annotated[Path, typer.Argument(help="The tar file to make.")],
    runs: Annotated[
        bool, typer.Option("--runs", help="The run directories, too: logs, checkpoints and all.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep database, decisions and keys in one file, while the service works or not."""
    (made,) = ask_service("backup", str(file.absolute()), *(["--runs"] if runs else []))
    if made["database"] == "postgresql":
        print_lines([PG_DUMP], err)
    if as_json:
        print_json(made)
        return
    file_ = escape(made["file"])
    text = f"{file_}, {made['bytes'] / 1e6:.1f} MB, holds keys: keep it like one"
    print_fields({"backup": text, "holds": _holds(made)})


def restore(
    file: Annotated[Path, typer.Argument(help="What `gonogo backup` made.")],
    as_json: Json = False,
) -> None:
    """Bring a backup back, into a home that has no database yet."""
    (done,) = ask_service("restore", str(file.absolute()))
    if done["database"] == "postgresql":
        print_lines([PG_RESTORE], err)
    if as_json:
        print_json(done)
        return
    text = f"{escape(done['home'])}, as of {done['made_at']}; go on with `gonogo up`"
    print_fields({"restored": text, "holds": _holds(done)})


def _holds(kept: dict[str, Any]) -> str:
    return f"{kept['decisions']} decisions, {kept['runs']} run directories, {kept['files']} files"
