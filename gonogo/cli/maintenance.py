"""The installation and its upkeep: doctor, flags, keys, database, backups, old run directories."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from gonogo.cli.client import connect
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
from gonogo.cli.stack import application_argv, application_env, embedded_server
from gonogo.contract.api import ExperimentView, WorkerState
from gonogo.contract.errors import GonogoError, NotFound, Rejected, Unavailable
from gonogo.contract.lifecycle import ExperimentState
from gonogo.planning.resolve import (
    checkout_root,
)
from gonogo.supervise.processes import allow_tracing
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

_MIN_FREE_BYTES = 5 * 10**9
_READ_S = 20.0
Check = tuple[str, str, str]
"""Name, outcome (pass, warn or fail), text."""


def doctor(as_json: Json = False) -> None:
    """Check what gonogo needs here, and say how to mend what is missing."""
    settings = load_settings()
    checks = list(_checks(settings))
    healthy = all(outcome != "fail" for _, outcome, _ in checks)
    if as_json:
        rows = [{"id": name, "outcome": outcome, "text": text} for name, outcome, text in checks]
        print_json({"ok": healthy, "checks": rows})
    else:
        print_lines(f"{outcome:<5} {name:<10} {text}" for name, outcome, text in checks)
    raise typer.Exit(Exit.OK if healthy else Exit.UNEXPECTED)


def _checks(settings: Settings) -> Iterator[Check]:
    path = settings.inherited.get("PATH", "")
    yield "python", "pass", sys.version.split()[0]
    try:
        yield "checkout", "pass", str(checkout_root())
    except NotFound as error:
        yield "checkout", "warn", error.detail
    yield _check_home(settings.home)
    yield _check_redis(settings)
    yield check_stacks(shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{path}"))
    smi = shutil.which("nvidia-smi")
    yield "gpu", "pass" if smi else "warn", smi or "no nvidia-smi: the cpu profile only"
    yield _check_service(settings)


def check_stacks(program: str | None) -> Check:
    """Read the stacks of this process once with py-spy, as the watcher reads those of a rank."""
    if program is None:
        return "py-spy", "warn", "no stacks of hung ranks as evidence: pip install py-spy"
    allow_tracing()
    command = [program, "dump", "--pid", str(os.getpid())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_READ_S, check=False)
    except subprocess.TimeoutExpired:
        return "py-spy", "warn", f"{program}: no answer within {_READ_S:.0f} s"
    if done.returncode == 0:
        return "py-spy", "pass", f"{program} reads stacks here"
    problem = next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
    advice = "hung ranks leave no stacks; allow ptrace of your own processes"
    return "py-spy", "warn", f"{program}: {problem}; {advice} (docs/how-to/deploy.md)"


def _check_home(home: Path) -> Check:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not existing.is_dir():
        return "home", "fail", f"{existing} is no folder: set GONOGO_HOME to one"
    free = shutil.disk_usage(existing).free
    text = f"{home}, {free / 1e9:.0f} GB free"
    return "home", "pass" if free > _MIN_FREE_BYTES else "warn", text


def _check_redis(settings: Settings) -> Check:
    if settings.redis_url:
        return "redis", "pass", "REDIS_URL is set"
    try:
        argv = embedded_server(settings.home, settings.inherited.get("PATH", ""))
    except (GonogoError, OSError) as error:
        return "redis", "fail", str(error)
    return "redis", "pass", f"embedded: {argv[0]}"


def _check_service(settings: Settings) -> Check:
    try:
        with connect(settings) as client:
            rows = client.get("/workers")["items"]
    except GonogoError as error:
        return "service", "warn", error.detail
    living = sum(row["state"] != WorkerState.SILENT for row in rows)
    text = f"{settings.url}, {living} worker(s)"
    if living < len(rows):
        text += f", {len(rows) - living} silent (`gonogo workers` lists them)"
    if not living:
        return "service", "warn", f"{text}; start one with `gonogo worker`"
    return "service", "pass", text


def flags(as_json: Json = False) -> None:
    """List every NSA_* variable of the trainer with its default and effect."""
    done = subprocess.run(
        application_argv("nsa.flags", *(["--json"] if as_json else [])),
        env=application_env(load_settings().inherited),
        cwd=checkout_root(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise typer.Exit(Exit.UNEXPECTED)
    if as_json:
        print_json({"items": json.loads(done.stdout)})
    else:
        print(done.stdout, end="")


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
    print_json(found) if as_json else _print(found)
    if any(row["problem"] for row in gone):
        raise typer.Exit(Exit.UNEXPECTED)


def _ask(settings: Settings, facts: list[RunFacts]) -> Course:
    """Return what the service knows of the experiments of these runs; without it all stay."""
    names = sorted({row.experiment for row in facts if row.known and row.ended_at is not None})
    if not names:
        return NOBODY_SAYS
    try:
        with connect(settings) as client:
            views = [ExperimentView.model_validate(row) for row in client.pages("/experiments")]
    except Unavailable as error:
        say(f"{len(names)} experiments are kept: {error.detail}")
        return NOBODY_SAYS
    finished = {view.id: view.state is ExperimentState.FINISHED for view in views}
    begun_from: set[str] = set()
    for view in views:  # the newest first, so what began from another comes before it
        if view.origin is not None and (not finished[view.id] or view.id in begun_from):
            begun_from.add(view.origin.experiment)
    return Course(finished=finished, begun_from=begun_from)


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
