"""Which commands look after the installation? Plans, self-check, the trainer's variables."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.checkout import application_argv, application_env
from gonogo.cli.connection import client_of
from gonogo.cli.exits import Exit
from gonogo.cli.output import err, out, print_json, print_table
from gonogo.cli.reach.plans import PlanArgument, placed, read_plan
from gonogo.cli.scheduler_commands import COMMANDS, missing_commands
from gonogo.cli.settings import Settings, load_settings
from gonogo.cli.stack import embedded_server
from gonogo.contract.api import WorkerState
from gonogo.contract.canonical import digest as digest_of
from gonogo.contract.errors import GonogoError, NotFound
from gonogo.planning.campaigns import resolve_campaign
from gonogo.planning.checks import warnings_of
from gonogo.planning.resolve import checkout_root, resolve_plan
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    parse_plan,
)
from gonogo.supervise.devices.query import has_nodes
from gonogo.supervise.given_up import load_refusals
from gonogo.supervise.locks import HOST_FOLDER, open_host_folder
from gonogo.supervise.quarantine import load_quarantines

_MIN_FREE_BYTES = 5 * 10**9


def plans(
    name: Annotated[str | None, typer.Argument(help="Plan to show, or a file to check.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the bundled plans, or show and check one (a name or a YAML file)."""
    if name is not None:
        argument = read_plan(name)
        if argument.data().get("campaign") is not None:
            _show_campaign(argument, as_json=as_json)
            return
        with placed(argument):
            resolved = resolve_plan(argument.data())
        plan, digest = resolved.parsed(), resolved.plan_digest()
        if as_json:
            print_json({"valid": True, "digest": digest, **resolved.wire()})
        else:
            out.print(f"{plan.name}: valid, digest {digest[:12]}", highlight=False)
            for warning in warnings_of(plan):
                err.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
            print_table(
                ("phase", "steps", "data", "begins", "criteria"),
                (
                    (
                        row.name,
                        str(row.steps),
                        row.data or "–",
                        f"with {row.init_from}'s weights" if row.init_from else "fresh",
                        ", ".join(c.id for c in row.gate),
                    )
                    for row in plan.phases
                ),
            )
        return
    found = [
        parse_plan(bundled_plan(each))
        for each in (*bundled_plan_names(), *bundled_campaign_names())
    ]
    if as_json:
        print_json({"items": [plan.canonical() for plan in found]})
        return
    print_table(
        ("plan", "profile", "ranks", "phases"),
        (
            (
                plan.name,
                plan.profile,
                str(plan.workload.world_size),
                ", ".join(f"{phase.name} {phase.steps}" for phase in plan.phases),
            )
            for plan in found
        ),
    )


def _show_campaign(argument: PlanArgument, *, as_json: bool) -> None:
    """Print a campaign's plan: what it compares, and what each variant changes."""
    with placed(argument):
        found = resolve_campaign(argument.data())
    base = next(iter(found.variants.values()))
    if as_json:
        data = argument.data()
        print_json({"valid": True, "digest": digest_of(data), **base.wire(), "plan": data})
        return
    spec = found.spec
    out.print(f"{found.plan}: valid, a campaign on {spec.metric}", highlight=False)
    print_table(
        ("variant", "changes", "runs"),
        ((row.name, row.text(), f"{spec.repeats} to {spec.bound}") for row in spec.variants),
    )


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check what gonogo needs here, and say how to mend what is missing."""
    settings = load_settings()
    checks = [
        {"id": name, "outcome": outcome, "text": text} for name, outcome, text in _checks(settings)
    ]
    healthy = all(check["outcome"] != "fail" for check in checks)
    if as_json:
        print_json({"ok": healthy, "checks": checks})
    else:
        colour = {"pass": "green", "warn": "yellow", "fail": "bold red"}
        for check in checks:
            style = colour[check["outcome"]]
            head = f"[{style}]{check['outcome']:<5}[/{style}] {check['id']:<10}"
            out.print(f"{head} {escape(check['text'])}", soft_wrap=True)
    raise typer.Exit(Exit.OK if healthy else Exit.UNEXPECTED)


def _checks(settings: Settings) -> Iterator[tuple[str, str, str]]:
    yield "python", "pass", sys.version.split()[0]
    try:
        yield "checkout", "pass", str(checkout_root())
    except NotFound as error:
        yield "checkout", "warn", error.detail
    yield _check_home(settings.home)
    yield _check_redis(settings)
    for module in ("torch", "fastapi", "rq"):
        yield _check_import(module)
    yield check_stacks(shutil.which("py-spy", path=_search_path(settings)))
    smi = shutil.which("nvidia-smi")
    yield "gpu", "pass" if smi else "warn", smi or "no nvidia-smi: the cpu profile only"
    yield from _check_scheduler(settings)
    yield from _check_quarantine(settings.home)
    yield _check_locks(settings)
    yield from _check_runs(settings.home)
    yield _check_service(settings)


def _search_path(settings: Settings) -> str:
    """Return PATH with this Python's own folder of commands first."""
    return f"{Path(sys.executable).parent}:{settings.inherited.get('PATH', '')}"


_STANDS = (
    "from gonogo.supervise.processes import allow_tracing;"
    "allow_tracing(); print(flush=True); input()"
)
"""A child that lets its stacks be read as a rank does, says so, and waits for a line."""
_READ_S = 20.0


def check_stacks(program: str | None) -> tuple[str, str, str]:
    """Read the stacks of a child once with py-spy, as the watcher reads those of a rank."""
    if program is None:
        return "py-spy", "warn", "no stacks of hung ranks as evidence: pip install py-spy"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _STANDS], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        command = [program, "dump", "--pid", str(child.pid)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_READ_S, check=False
            )
            said = [*done.stderr.strip().splitlines(), f"exit code {done.returncode}"]
            said = said[:1] if done.returncode else []
        except subprocess.TimeoutExpired:
            said = [f"no answer within {_READ_S:.0f} s"]
        child.kill()
    if not said:
        return "py-spy", "pass", f"{program} reads stacks here"
    advice = (
        "hung ranks leave no stacks; allow ptrace of one's own processes (docs/how-to/deploy.md)"
    )
    return "py-spy", "warn", f"{program}: {said[0]}; {advice}"


def _check_home(home: Path) -> tuple[str, str, str]:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not existing.is_dir():
        return "home", "fail", f"{existing} is no folder: set GONOGO_HOME to one"
    free = shutil.disk_usage(existing).free
    text = f"{home}, {free / 1e9:.0f} GB free"
    return "home", "pass" if free > _MIN_FREE_BYTES else "warn", text


def _check_scheduler(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Say whether the commands of the scheduler that GONOGO_ENGINE names can be called."""
    needed = COMMANDS.get(settings.engine)
    if needed is None:
        return
    missing = missing_commands(settings.engine, settings.inherited.get("PATH"))
    text = missing or f"{', '.join(needed)} are on PATH"
    yield settings.engine.value, "pass" if missing is None else "fail", text


def _check_quarantine(home: Path) -> Iterator[tuple[str, str, str]]:
    """Say which devices no run gets, why, for how long, and how they come back."""
    try:
        held = load_quarantines(home, time.time())
    except OSError as error:
        yield "quarantine", "fail", f"{home / 'quarantine'}: {error.strerror}; no device is used"
        return
    if not held:
        yield "quarantine", "pass", "no device"
    for row in held.values():
        until = "" if row.until is None else f", until {_at(row.until)}"
        yield "quarantine", "warn", f"{row.device}{until}: {row.reason}; {row.way_out}"


def _check_runs(home: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the runs that the control plane refuses, and what to do."""
    try:
        refused = list(load_refusals(home / "runs"))
    except OSError as error:
        yield "runs", "warn", f"{home / 'runs'}: {error.strerror}"
        return
    if not refused:
        yield "runs", "pass", "none is refused"
    for row in refused:
        text = f"{row.run}: refused since {_at(row.since)}: {row.text}; it is kept; to give it up:"
        yield "runs", "warn", f"{text} {row.way_out}"


def _at(stamp: float) -> str:
    return f"{datetime.fromtimestamp(stamp).astimezone():%Y-%m-%d %H:%M}"


def _check_locks(settings: Settings) -> tuple[str, str, str]:
    """Say whether the GPUs of this host are locked against the runs of other homes."""
    folder = settings.locks or HOST_FOLDER
    if not has_nodes():
        return "locks", "pass", f"{settings.home / 'locks'}: no GPU to share with other homes"
    if open_host_folder(folder) is not None:
        return "locks", "pass", str(folder)
    text = f"{folder} cannot be used: two homes on this host may give out one GPU twice"
    return "locks", "warn", f"{text}; make it (mode 1777) or set GONOGO_LOCKS"


def _check_redis(settings: Settings) -> tuple[str, str, str]:
    if settings.redis_url:
        return "redis", "pass", "REDIS_URL is set"
    try:
        argv = embedded_server(settings.home, settings.inherited.get("PATH", ""))
    except GonogoError as error:
        return "redis", "fail", error.detail
    except OSError as error:
        return "redis", "fail", f"{error.filename}: {error.strerror}"
    return "redis", "pass", f"embedded: {argv[0]}"


def _check_import(module: str) -> tuple[str, str, str]:
    code = f"import importlib.metadata as m; print(m.version({module!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return module, "pass", done.stdout.strip()
    return module, "warn", "not installed: make install"


def _check_service(settings: Settings) -> tuple[str, str, str]:
    with client_of(settings) as client:
        try:
            rows = client.get("/workers")["items"]
        except GonogoError as error:
            return "service", "warn", error.detail
    living = sum(row["state"] != WorkerState.SILENT for row in rows)
    text = f"{settings.url}, {living} worker(s)"
    if living < len(rows):
        text += f", {len(rows) - living} silent (`gonogo workers` names them; their logs say why)"
    if not living:
        return "service", "warn", f"{text}; start one with `gonogo worker`"
    return "service", "pass", text


def flags(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
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


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plans)
    app.command()(doctor)
    app.command()(flags)
