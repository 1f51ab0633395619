"""Commands for keys, database, backups and old run directories, on the service's own host."""

import json
import subprocess
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from gonogo.cli.client import Client, connect
from gonogo.cli.exits import Exit
from gonogo.cli.output import (
    Json,
    ago,
    err,
    out,
    print_fields,
    print_json,
    print_lines,
    print_list,
    say,
    size_text,
)
from gonogo.cli.settings import Settings, load_settings
from gonogo.cli.stack import application_argv, application_env
from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import NotFound, Rejected, Unavailable
from gonogo.contract.lifecycle import ExperimentState
from gonogo.planning.resolve import checkout_root
from gonogo.supervise.prune import (
    NOBODY_SAYS,
    Choice,
    Course,
    Policy,
    RunFacts,
    decide,
    load_facts,
    old_enough,
)
from gonogo.supervise.prune import prune as prune_directory

PG_DUMP = "the database is PostgreSQL and not in this file; keep it with pg_dump, now, after this"
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
    action: Annotated[Literal["status", "upgrade"], typer.Argument(help="What to do.")] = "status",
    as_json: Json = False,
) -> None:
    """Say which schema the database has, or bring it to the newest (upgrade)."""
    (state,) = ask_service("db", "upgrade" if action == "upgrade" else "current")
    found, newest = state["revision"], state["newest"]
    text = f"revision {found or 'none'}; bring it to {newest} with: gonogo db upgrade"
    if found == newest:
        text = f"revision {found}, the newest"
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
                    f"revoked {ago(row['revoked_at'])}" if row["revoked_at"] else "valid"
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
    holds = ", ".join(f"{kept[word]} {word}" for word in ("decisions", "runs", "files"))
    print_fields({name: escape(text), "holds": holds})


def prune(
    keep_days: Annotated[
        float,
        typer.Option(min=0.0, max=1e6, help="Keep experiments that ended within so many days."),
    ] = 30.0,
    checkpoints_only: Annotated[
        bool, typer.Option("--checkpoints-only", help="Keep all but the checkpoints.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove old run directories of this home; what may still be needed stays."""
    settings, now = load_settings(), time.time()
    policy = Policy(keep_days=keep_days, checkpoints_only=checkpoints_only)
    facts = load_facts(settings.home)
    choices = decide(facts, policy, _ask(settings, old_enough(facts, policy, now)), now)
    done = [_removed(row, settings, policy, now, dry_run=dry_run) for row in choices]
    gone = [row for row in done if "why" not in row]
    found: dict[str, Any] = {
        "home": str(settings.home),
        "dry_run": dry_run,
        **asdict(policy),
        "bytes": sum(row["bytes"] for row in gone if row["problem"] is None),
        "pruned": gone,
        "kept": [row for row in done if "why" in row],
    }
    if as_json:
        print_json(found)
    else:
        _print(found)
    if any(row["problem"] for row in gone):
        raise typer.Exit(Exit.UNEXPECTED)


def _ask(settings: Settings, facts: list[RunFacts]) -> Course:
    """Return what the service knows of the experiments of these runs; without it all stay."""
    names = sorted({row.experiment for row in facts if row.known and row.ended_at is not None})
    if not names:
        return NOBODY_SAYS
    try:
        with connect(settings) as client:
            views = [view for name in names if (view := _view_of(client, name)) is not None]
            finished = {view.id: view.state is ExperimentState.FINISHED for view in views}
            return Course(finished=finished, begun_from=_begun_from(client))
    except Unavailable as error:
        say(f"{len(names)} experiments are kept: {error.detail}")
        return NOBODY_SAYS


def _view_of(client: Client, experiment: str) -> ExperimentView | None:
    """Return how the service shows an experiment; None where it knows none of that id."""
    try:
        return client.experiment(experiment)
    except NotFound:
        return None


def _begun_from(client: Client) -> set[str]:
    open_states = [state for state in ExperimentState if state is not ExperimentState.FINISHED]
    rows = [row for state in open_states for row in client.pages("/experiments", state=state)]
    views: list[ExperimentView | None] = [ExperimentView.model_validate(row) for row in rows]
    found: set[str] = set()
    while views:
        view = views.pop()
        if view is None or view.origin is None or view.origin.experiment in found:
            continue
        found.add(view.origin.experiment)
        views.append(_view_of(client, view.origin.experiment))
    return found


def _removed(
    choice: Choice, settings: Settings, policy: Policy, now: float, *, dry_run: bool
) -> dict[str, Any]:
    """Remove what was chosen; return `{run, experiment, why}` of what is kept, else what went."""
    row: dict[str, Any] = {"run": choice.run, "experiment": choice.experiment}
    if choice.what is None:
        return {**row, "why": choice.why}
    problem = None
    if not dry_run:
        path = settings.home / "runs" / choice.run
        text = f"gonogo prune --keep-days {policy.keep_days:g}"
        try:
            if not prune_directory(path, choice.what, policy=text, now=now):
                return {**row, "why": "a keeper has it"}
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror or error}"
    return {**row, "what": choice.what, "bytes": choice.bytes, "problem": problem}


def _print(found: dict[str, Any]) -> None:
    verb = "would go" if found["dry_run"] else "removed"
    for row in found["pruned"]:
        what = "checkpoints of " if row["what"] == "checkpoints" else ""
        text = f"{verb}: {what}{row['run']} ({row['experiment']}), {size_text(row['bytes'])}"
        print_lines([f"{text}; not all of it: {row['problem']}" if row["problem"] else text])
    whys = Counter(row["why"] for row in found["kept"])
    print_lines(f"kept: {count}, {why}" for why, count in sorted(whys.items()))
    print_lines([f"{size_text(found['bytes'])} {verb} of {found['home']}/runs"])
