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
    orders = _orders_of(name, phase)
    tables = {order.phase: order.limits_of_places() for order in orders}
    if as_json:
        rows = [
            {"phase": row, "patience": {str(place): cell.wire() for place, cell in table.items()}}
            for row, table in tables.items()
        ]
        print_json({"name": name, "tables": rows})
        return
    while tables:
        table = next(iter(tables.values()))
        alike = [name for name, other in tables.items() if other == table]
        tables = {name: other for name, other in tables.items() if name not in alike}
        out.print(f"[bold]{', '.join(alike)}[/bold]")
        print_table(
            list(table.items()),
            {
                "place": lambda row: row[0],
                "seconds": lambda row: "none" if row[1].seconds is None else f"{row[1].seconds:g}",
                "multiple": lambda row: _multiple(row[1]),
                "from": lambda row: row[1].source,
                "setting": lambda row: SETTING.get(row[0], ""),
                "means": lambda row: MEANING[row[0]],
            },
            cut=("means",),
        )


def _multiple(row: Patience) -> str:
    return "" if row.multiple is None else f"{row.multiple:g} × {row.of}"


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
