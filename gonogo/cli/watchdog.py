"""`gonogo watchdog`: how long a run may stay in each place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from gonogo.cli.logs import find_run_dir
from gonogo.cli.output import Json, out, print_json, print_table
from gonogo.cli.plan_arguments import placed, read_plan
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import NotFound
from gonogo.contract.order import Order
from gonogo.contract.patience import MEANING, SETTING, Patience, Place
from gonogo.planning.resolve import build_order, load_train_config, resolve_plan
from gonogo.rundir import RunDir, load_record

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
    order = _order_of_run(name)
    tables = (
        _tables_of_plan(name, phase) if order is None else {order.phase: order.limits_of_places()}
    )
    if as_json:
        rows = [
            {"phase": row, "patience": {str(place): cell.wire() for place, cell in table.items()}}
            for row, table in tables.items()
        ]
        print_json({"name": name, "tables": rows})
        return
    for phases, table in _grouped(tables):
        if len(tables) > 1 or order is not None:
            out.print(f"[bold]{', '.join(phases)}[/bold]")
        print_table(
            [{"place": place, "row": row} for place, row in table.items()],
            {
                "place": "place",
                "seconds": lambda cell: _number(cell["row"].seconds),
                "multiple": lambda cell: _multiple(cell["row"]),
                "from": lambda cell: cell["row"].source,
                "setting": lambda cell: SETTING.get(cell["place"], ""),
                "means": lambda cell: MEANING[cell["place"]],
            },
            cut=("means",),
        )


def _number(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:g}"


def _multiple(row: Patience) -> str:
    return "" if row.multiple is None else f"{row.multiple:g} × {row.of}"


def _order_of_run(name: str) -> Order | None:
    """Return the order of a run directory or of a run of this home; None if `name` is neither."""
    run_dir = find_run_dir(name, load_settings().home, own=False) if "run_" in name else None
    folder = run_dir or Path(name)
    if not folder.is_dir():
        return None
    order = load_record(RunDir(folder).order, Order)
    if order is None:
        raise NotFound(f"{folder}: no order.json")
    return order


def _tables_of_plan(name: str, phase: str | None) -> dict[str, Table]:
    """Return phase → its table, in the plan's order."""
    argument = read_plan(name)
    with placed(argument):
        resolved = resolve_plan(argument.data(), load_config=load_train_config)
        names = [row.name for row in resolved.parsed().phases] if phase is None else [phase]
        orders = [build_order(resolved, row, experiment="", run="", token=0) for row in names]
    return {order.phase: order.limits_of_places() for order in orders}


def _grouped(tables: Mapping[str, Table]) -> list[tuple[list[str], Table]]:
    """Return each distinct table with the phases that have it."""
    found: list[tuple[list[str], Table]] = []
    for phase, table in tables.items():
        alike = [phases for phases, known in found if known == table]
        if alike:
            alike[0].append(phase)
        else:
            found.append(([phase], table))
    return found
