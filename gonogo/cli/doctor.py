"""The installation and what it offers: `doctor`, `plans`, `flags`, and `watchdog`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from gonogo.cli.client import connect
from gonogo.cli.exits import Exit
from gonogo.cli.logs import find_run_dir
from gonogo.cli.output import Json, out, print_json, print_lines, print_table, warn
from gonogo.cli.plan_arguments import PlanArgument, placed, read_plan
from gonogo.cli.settings import Settings, load_settings
from gonogo.cli.stack import (
    application_argv,
    application_env,
    embedded_server,
)
from gonogo.contract.api import WorkerState
from gonogo.contract.canonical import digest as digest_of
from gonogo.contract.errors import GonogoError, NotFound
from gonogo.contract.order import Order
from gonogo.contract.watch import MEANING, SETTING, Patience, Place
from gonogo.planning.campaigns import resolve_campaign
from gonogo.planning.resolve import (
    build_order,
    checkout_root,
    load_train_config,
    resolve_plan,
    warnings_of,
)
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    parse_plan,
)
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.processes import allow_tracing

_MIN_FREE_BYTES = 5 * 10**9
_READ_S = 20.0
Check = tuple[str, str, str]
"""Name, outcome (pass, warn or fail), text."""


def plans(
    name: Annotated[str | None, typer.Argument(help="Plan to show, or a file to check.")] = None,
    as_json: Json = False,
) -> None:
    """List the bundled plans, or show and check one (a name or a YAML file)."""
    if name is not None:
        argument = read_plan(name)
        if argument.data().get("campaign") is not None:
            _show_campaign(argument, as_json=as_json)
        else:
            _show_plan(argument, as_json=as_json)
        return
    names = [*bundled_plan_names(), *bundled_campaign_names()]
    found = [parse_plan(bundled_plan(each)) for each in names]
    if as_json:
        print_json({"items": [plan.canonical() for plan in found]})
        return
    print_table(
        found,
        {
            "plan": "name",
            "profile": "profile",
            "ranks": lambda plan: str(plan.workload.world_size),
            "phases": lambda plan: ", ".join(f"{row.name} {row.steps}" for row in plan.phases),
        },
        cut=("phases",),
    )


def _show_plan(argument: PlanArgument, *, as_json: bool) -> None:
    with placed(argument):
        resolved = resolve_plan(argument.data())
    plan, digest = resolved.parsed(), resolved.plan_digest()
    if as_json:
        print_json({"valid": True, "digest": digest, **resolved.wire()})
        return
    out.print(f"{plan.name}: valid, digest {digest[:12]}", highlight=False)
    for text in warnings_of(plan):
        warn(text)
    print_table(
        plan.phases,
        {
            "phase": "name",
            "steps": "steps",
            "data": "data",
            "begins": lambda row: f"with {row.init_from}'s weights" if row.init_from else "fresh",
            "criteria": lambda row: ", ".join(each.id for each in row.gate),
        },
        cut=("criteria",),
    )


def _show_campaign(argument: PlanArgument, *, as_json: bool) -> None:
    with placed(argument):
        found = resolve_campaign(argument.data())
    if as_json:
        base, data = next(iter(found.variants.values())), argument.data()
        print_json({"valid": True, "digest": digest_of(data), **base.wire(), "plan": data})
        return
    print_lines([f"{found.plan}: valid, a campaign on {found.spec.metric}"])
    print_lines(f"  {row.name}  {row.text()}" for row in found.spec.variants)


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


Table = Mapping[Place, Patience]


def watchdog(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|RUN",
            help="A bundled plan, a plan file, a run directory, or a run of this home.",
        ),
    ],
    phase: Annotated[str | None, typer.Option(help="Only this phase of the plan.")] = None,
    as_json: Json = False,
) -> None:
    """Print the table of patience: the limit of each place, and where each number comes from."""
    orders = _orders_of(name, phase)
    tables = {order.phase: order.limits_of_places() for order in orders}
    if as_json:
        rows = [
            {"phase": row, "patience": {str(place): cell.wire() for place, cell in table.items()}}
            for row, table in tables.items()
        ]
        print_json({"name": name, "tables": rows})
        return
    for phase_name, table in tables.items():
        out.print(f"[bold]{phase_name}[/bold]")
        print_table(
            list(table.items()),
            {
                "place": lambda row: row[0],
                "seconds": lambda row: "none" if row[1].seconds is None else f"{row[1].seconds:g}",
                "multiple": lambda row: (
                    f"{row[1].multiple:g} × {row[1].of}" if row[1].multiple else ""
                ),
                "from": lambda row: row[1].source,
                "setting": lambda row: SETTING.get(row[0], ""),
                "means": lambda row: MEANING[row[0]],
            },
            cut=("means",),
        )


def _orders_of(name: str, phase: str | None) -> list[Order]:
    """Return the order of a run directory or of a run of this home, else those of a plan."""
    run_dir = find_run_dir(name, load_settings().home, own=False) if "run_" in name else None
    folder = run_dir or Path(name)
    if folder.is_dir():
        order = load_record(RunDir(folder).order, Order)
        if order is None:
            raise NotFound(f"{folder}: no order.json")
        return [order]
    argument = read_plan(name)
    with placed(argument):
        resolved = resolve_plan(argument.data(), load_config=load_train_config)
        names = [row.name for row in resolved.parsed().phases] if phase is None else [phase]
        return [build_order(resolved, row, experiment="", run="", token=0) for row in names]
