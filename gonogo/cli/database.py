"""Commands for keys, database and backups, on the service's own host.

All run `python -m service`, which answers in JSON, a line each.
"""

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal

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
    size_text,
)
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import application_argv, application_env
from gonogo.contract.errors import Rejected
from gonogo.planning.resolve import checkout_root

PG_DUMP = (
    "the database is PostgreSQL and not in this file; keep it with"
    " `pg_dump --format=custom --file=gonogo.dump`, now, after this"
)
PG_RESTORE = "bring its database back with `pg_restore`, before the service starts"


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
    print_lines((line.replace("error: ", "gonogo: ", 1) for line in done.stderr.splitlines()), err)
    if done.returncode != 0:
        raise typer.Exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def db(
    action: Annotated[
        Literal["status", "current", "upgrade"],
        typer.Argument(help="What to do; current is another word for status."),
    ] = "status",
    as_json: Json = False,
) -> None:
    """Say which schema the database has, or bring it to the newest (upgrade)."""
    (state,) = ask_service("db", "upgrade" if action == "upgrade" else "current")
    found, newest = state["revision"], state["newest"]
    text = f"revision {found}; bring it to {newest} with: gonogo db upgrade"
    if found is None:
        text = "none yet; `gonogo up` or `gonogo db upgrade` makes it"
    elif found >= newest:
        which = "the newest" if found == newest else f"of a newer release; this one knows {newest}"
        text = f"revision {found}, {which}"
    print_json(state) if as_json else print_fields({"database": text})


def keys(
    action: Annotated[
        Literal["list", "create", "revoke"], typer.Argument(help="What to do.")
    ] = "list",
    name: Annotated[str | None, typer.Argument(help="Name of the key.")] = None,
    role: Annotated[
        Literal["viewer", "operator", "admin", "worker"],
        typer.Option(help="What a created key may do."),
    ] = "operator",
    file: Annotated[
        Path | None,
        typer.Option(help="Create: take the key that this file holds; a former one is revoked."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List, create or revoke API keys (on the service's own host)."""
    if action == "list":
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
    if file is not None and action != "create":
        raise Rejected(f"keys {action}: --file goes with create")
    more = ["--role", role] if action == "create" else []
    more += [] if file is None else ["--file", str(file.absolute())]
    (answer,) = ask_service("keys", action, name, *more)
    if as_json:
        print_json(answer)
    elif action == "revoke":
        out.print(f"{escape(name)} is revoked")
    elif file is not None:
        out.print(f"{escape(name)}, {role}: the key in {escape(str(file))} is valid")
    else:
        print_lines([f"{name}, {role}: keep this key, it is not shown again"], err)
        print(answer["key"])


def backup(
    file: Annotated[Path, typer.Argument(help="The tar file to make.")],
    runs: Annotated[
        bool, typer.Option("--runs", help="The run directories, too: logs, checkpoints and all.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep database, decisions and keys in one file, while the service works or not."""
    (made,) = ask_service("backup", str(file.absolute()), *(["--runs"] if runs else []))
    text = f"{made['file']}, {size_text(made['bytes'])}, holds keys: keep it like one"
    _print_kept(made, "backup", text, PG_DUMP, as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="What `gonogo backup` made.")],
    as_json: Json = False,
) -> None:
    """Bring a backup back, into a home that has no database yet."""
    (done,) = ask_service("restore", str(file.absolute()))
    text = f"{done['home']}, as of {done['made_at']}; continue with `gonogo up`"
    _print_kept(done, "restored", text, PG_RESTORE, as_json=as_json)


def _print_kept(
    kept: dict[str, Any], name: str, text: str, of_postgres: str, *, as_json: bool
) -> None:
    if kept["database"] == "postgresql":
        print_lines([of_postgres], err)
    if as_json:
        print_json(kept)
        return
    counts = ("decisions", "run directories", "files")
    holds = ", ".join(f"{kept[word.replace('run directories', 'runs')]} {word}" for word in counts)
    print_fields({name: escape(text), "holds": holds})
