"""The command line of the simulator: count what the watch finds in simulated runs.

Healthy runs must not be halted, sick ones must be answered. Every run has a seed of its own, so
the result is the same for the same seed, however many processes share the work.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from gonogo.cli.exits import Exit
from gonogo.cli.output import duration, err, out, print_fields, print_json, print_table
from gonogo.contract.errors import Rejected
from gonogo.supervise.processes import die_with_parent
from lab.run import Part, Tally, cells_of, plan_parts, pool_cells, report_of, simulate_part

TELL_EVERY_S = 10.0
app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
FIGURES = (
    "run_hours",
    "steps",
    "false_halts",
    "per_1000h",
    "upper95_per_1000h",
    "warnings_per_1000h",
    "sick_runs",
    "missed",
)


def _numbers(text: str, kind: type[int] | type[float], option: str) -> list[Any]:
    """Return the positive numbers of a list such as `1,25`."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise Rejected(f"{option}: expected numbers separated by commas, found {text!r}") from error
    if not all(0 < value < 1e6 for value in values):
        raise Rejected(f"{option}: numbers must be positive, found {text!r}")
    return values


@app.command()
def simulate(
    hours: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="Healthy run-hours to simulate.")
    ] = 200.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 1,
    step_s: Annotated[str, typer.Option(help="Step times in seconds.")] = "1,2.4,25,60",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "1,2,4,8",
    healthy_only: Annotated[bool, typer.Option(help="No sick runs.")] = False,
    pool: Annotated[bool, typer.Option(help="The pool of `make simulate`: 20 000 hours.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Simulate runs and count false halts, misses and latencies; exit 1 on any halt or miss."""
    steps, counts = _numbers(step_s, float, "--step-s"), _numbers(ranks, int, "--ranks")
    cells = pool_cells() if pool else cells_of(hours, steps, counts)
    parts = plan_parts(cells, seed=seed, healthy_only=healthy_only)
    began = time.monotonic()
    tally = Tally.of(_simulated(parts, jobs))
    document = {
        "seed": seed,
        **report_of(tally),
        "cells": [
            {"step_s": cell.step_s, "ranks": cell.ranks, "hours": round(cell.hours, 3)}
            for cell in cells
        ],
    }
    if as_json:
        print_json(document)
    else:
        _print(document)
    err.print(f"took {duration(time.monotonic() - began)}", highlight=False)
    sound = not document["false_halts"] and not document["missed"]
    raise typer.Exit(Exit.OK if sound else Exit.UNEXPECTED)


def _simulated(parts: Sequence[Part], jobs: int | None) -> list[Tally]:
    """Return every part's tally: sick runs first, then the longest."""
    jobs = jobs or os.cpu_count() or 1
    left = sorted(parts, key=lambda part: (part.sick is None, -part.hours))
    tallies, told = list[Tally](), time.monotonic()
    for tally in _worked(left, min(jobs, len(left) or 1)):
        tallies.append(tally)
        for halt in tally.halts:
            err.print(f"halted: {halt}", highlight=False, markup=False, soft_wrap=True)
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            err.print(f"{len(tallies)} of {len(parts)} runs", highlight=False)
    return tallies


def _worked(parts: Sequence[Part], jobs: int) -> Iterable[Tally]:
    """Yield the tally of each part as it is done."""
    if jobs == 1:
        yield from map(simulate_part, parts)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=die_with_parent
    ) as pool:
        for future in as_completed([pool.submit(simulate_part, part) for part in parts]):
            yield future.result()


def _print(document: dict[str, Any]) -> None:
    """Print the report for people."""
    print_fields({name: document[name] for name in FIGURES})
    figures = ("false_halts", "warnings", "sick", "missed", "latency_p50_s", "latency_p99_s")
    rows = [{"detector": name, **row} for name, row in document["by_detector"].items()]
    print_table(
        rows, {"detector": "detector", **{name: partial(_figure, name) for name in figures}}
    )
    for halt in document["halts"]:
        out.print(f"halted: {halt}", highlight=False, markup=False, soft_wrap=True)
    for miss in document["misses"]:
        out.print(f"missed: {miss}", highlight=False, markup=False, soft_wrap=True)


def _figure(name: str, row: Mapping[str, Any]) -> str:
    return "–" if row[name] is None else f"{row[name]:g}"
