"""Which files did a run leave, and what stands in one? `gonogo artifacts RUN [FILE]`."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from gonogo.cli.connection import connect
from gonogo.cli.output import err, out, print_json
from gonogo.cli.reach.completing import complete_runs
from gonogo.cli.reach.naming import resolve_run
from gonogo.cli.screen.table import Column, print_columns
from gonogo.contract.api import ArtifactsView
from gonogo.contract.errors import NotFound, Rejected


def artifacts(
    run: Annotated[
        str,
        typer.Argument(
            help="Run or experiment (its newest run): id, beginning, name, or `last`.",
            autocompletion=complete_runs,
        ),
    ] = "last",
    file: Annotated[str | None, typer.Argument(help="File to print, as the list names it.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the file here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the files of a run, or print one of them."""
    if (output is not None or as_json) and (file is None) != as_json:
        raise Rejected("-o goes with a FILE, --json with the list")
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            raise NotFound(f"{run} has no run yet")
        if file is not None:
            answer = client.call("GET", f"/runs/{found}/artifacts/{quote(file)}")
            _save(answer.content, output)
            return
        view = ArtifactsView.model_validate(client.get(f"/runs/{found}/artifacts"))
    if as_json:
        print_json(view.wire())
    else:
        _print_files(view)


def _save(content: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise Rejected(f"-o {output}: {error.strerror or error}") from error
    err.print(f"{output}: {size(len(content))}", markup=False, highlight=False)


def _print_files(view: ArtifactsView) -> None:
    if not view.items:
        out.print("no file of this run can be had here")
    else:
        rows = view.items
        print_columns(
            [
                Column(name="file", cells=[escape(row.path) for row in rows], cut=True),
                Column(name="size", cells=[size(row.bytes) for row in rows]),
                Column(
                    name="",
                    cells=["cut short" if row.truncated else "" for row in rows],
                    gives_way=1,
                ),
            ]
        )
    if view.dir is not None:
        where = "in" if view.reachable else f"the rest lies on {view.host} in"
        err.print(f"{where} {view.dir}", markup=False, highlight=False, soft_wrap=True)


def size(count: int) -> str:
    """Return a number of bytes as people read it: `512 B`, `3.4 kB`, `1.2 GB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(artifacts)
