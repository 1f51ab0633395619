"""Plans: read what was typed, submit, show, check, and print the limits of each place.

Problems get a line of the plan's file, or `--set`, as place.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.client import Client
from gonogo.cli.logs import find_run_dir
from gonogo.cli.output import Json, out, print_json, print_lines, print_table, warn
from gonogo.cli.settings import load_settings
from gonogo.contract.api import ExperimentView
from gonogo.contract.canonical import digest as digest_of
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import NotFound, Problem, Rejected, hint, near
from gonogo.contract.lifecycle import PhaseState
from gonogo.contract.order import Order
from gonogo.contract.watch import MEANING, SETTING
from gonogo.contract.yaml_text import Document, parse_document, parse_yaml
from gonogo.planning.campaigns import resolve_campaign
from gonogo.planning.resolve import build_order, load_train_config, resolve_plan, warnings_of
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    line_of,
    parse_plan,
)
from gonogo.rundir import RunDir, load_record

_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArgument:
    """What was typed for a plan, read."""

    name: str
    document: Document | None = None
    """The file as read; None of a bundled plan."""

    def data(self) -> dict[str, Any]:
        """Return the plan's data."""
        found: dict[str, Any]
        found = bundled_plan(self.name) if self.document is None else self.document.data
        return found


def read_plan(plan: str) -> PlanArgument:
    """Return the plan that an argument names: a bundled one, or a YAML file."""
    names = [*bundled_plan_names(), *bundled_campaign_names()]
    if plan in names:
        return PlanArgument(name=plan)
    try:
        text = Path(plan).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{plan}: neither a plan file nor one of {', '.join(names)}"
        meant = f"; {hint(plan, names)}" if near(plan, names) else ""
        raise NotFound(f"{message}{meant}") from error
    argument = PlanArgument(name=plan, document=Document(data={}))
    with placed(argument):
        document = parse_document(text)
        if not isinstance(document.data, dict):
            kind = "nothing" if document.data is None else f"a {type(document.data).__name__}"
            message = f"found {kind}; expected a plan (a mapping)"
            raise Rejected(message, problems=(Problem(path="", message=message, line=1),))
    return replace(argument, document=document)


@contextmanager
def placed(plan: PlanArgument, sets: Collection[str] = ()) -> Iterator[None]:
    """Give every problem of what is refused within its place: a line of the file, or `--set`."""
    try:
        yield
    except Rejected as error:
        rows = [_placed(row, plan, sets) for row in error.problems]
        error.problems = tuple(sorted(rows, key=lambda row: row.line or 0))
        raise


def _placed(row: Problem, plan: PlanArgument, sets: Collection[str]) -> Problem:
    if row.source is not None:
        return row
    for path in sets:  # an override is about a place, or about something in it
        if f"{row.path}.".startswith(f"{path}.") or f"{path}.".startswith(f"{row.path}."):
            return replace(row, source="--set")
    if plan.document is None:
        return replace(row, source=plan.name) if row.path else row
    return replace(row, source=plan.name, line=row.line or line_of(plan.document, row.path))


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return `k=v` arguments as a mapping."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Rejected(f"{option}: found {pair!r}; expected KEY=VALUE")
        result[name] = value
    return result


def parse_sets(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `--set` arguments with their values read as YAML; a variable of an `env` is a text."""
    return {name: _value(name, text) for name, text in parse_pairs(pairs, "--set").items()}


def parse_grid(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `--grid KEY=A,B` arguments as overrides of a campaign's grid."""
    found = {}
    for name, text in parse_pairs(pairs, "--grid").items():
        of_variable = name.startswith("env.")
        values = text.split(",") if of_variable else _value(name, f"[{text}]", "--grid")
        found[f"campaign.grid.{name}"] = values
    return found


def _value(name: str, text: str, option: str = "--set") -> Any:
    if name == "fault":
        return text
    of_variable = name.split(".")[-2:-1] == ["env"]
    try:
        found = parse_yaml(text)
    except Rejected as error:
        if of_variable:
            return text
        message = error.problems[0].message
        problem = Problem(path=name, message=f"found {text!r}; {message}", source=option)
        raise Rejected(f"{option} {name}: {message}", problems=(problem,)) from error
    return text if of_variable and found is not None and not isinstance(found, str) else found


def submit_plan(
    client: Client,
    path: str,
    plan: PlanArgument | None,
    sets: Mapping[str, Any],
    *,
    key: str | None,
    **body: object,
) -> dict[str, Any]:
    """Return the answer of the service; print its warnings."""
    named = plan.name if plan is not None and plan.document is None else plan and plan.data()
    whole = {"plan": wire_value(named), "set": wire_value(dict(sets)), **body}
    with placed(plan or PlanArgument(name="rerun"), sets):
        answer: dict[str, Any] = client.post(
            path, whole, **{"Idempotency-Key": key or str(uuid.uuid4())}
        )
    for warning in answer.get("warnings", []):
        warn(warning)
    return answer


def phases_again(view: ExperimentView, named: str | None) -> list[str]:
    """Return the phase that is run again (the named or first open one), and those after it."""
    names = [phase.name for phase in view.phases]
    open_ = (phase.name for phase in view.phases if phase.state not in _THROUGH)
    first = named or next(open_, names[0])
    if first not in names:
        raise Rejected(f"--phase: {view.id} has no phase {first!r}; {hint(first, names)}")
    return names[names.index(first) :]


def sets_of_phases(sets: Mapping[str, Any], phases: Sequence[str]) -> dict[str, Any]:
    """Return overrides of these phases alone, by `train.KEY`, `env.NAME`, `seed`, `steps`."""
    found: dict[str, Any] = {}
    for typed, value in sets.items():
        path = "train.seed" if typed == "seed" else typed
        if path == "steps":
            found[f"phases.{phases[0]}.steps"] = value
        elif path.startswith(("train.", "env.")):
            found |= {f"phases.{phase}.{path}": value for phase in phases}
        else:
            found[path] = value
    return found


def plans(
    name: Annotated[str | None, typer.Argument(help="Plan to show, or a file to check.")] = None,
    as_json: Json = False,
) -> None:
    """List the bundled plans, or show and check one (a name or a YAML file)."""
    if name is not None:
        _show_plan(read_plan(name), as_json=as_json)
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
    data, campaign = argument.data(), None
    with placed(argument):
        if data.get("campaign") is None:
            resolved = resolve_plan(data)
        else:
            campaign = resolve_campaign(data)
            resolved = next(iter(campaign.variants.values()))
    plan = resolved.parsed()
    digest = resolved.plan_digest() if campaign is None else digest_of(data)
    if as_json:
        whole = {} if campaign is None else {"plan": data}
        print_json({"valid": True, "digest": digest, **resolved.wire(), **whole})
        return
    words = f"digest {digest[:12]}" if campaign is None else f"a campaign on {campaign.spec.metric}"
    out.print(f"{plan.name}: valid, {words}", highlight=False)
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
    if campaign is not None:
        print_lines(f"{row.name}  {row.text()}" for row in campaign.spec.variants)


def watchdog(
    name: Annotated[
        str,
        typer.Argument(metavar="PLAN|RUN", help="A plan or its file, or a run or its directory."),
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
