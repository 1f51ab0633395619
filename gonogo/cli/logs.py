"""`gonogo logs`: the log of a run, from the service or from a run directory."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.client import connect, pick_id, resolve_run
from gonogo.cli.exits import Exit
from gonogo.cli.output import Json, err, print_json, print_lines
from gonogo.cli.settings import load_settings
from gonogo.contract.lifecycle import RunState
from gonogo.contract.wire import Kind
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir
from gonogo.supervise.durable import load_json

POLL_S = 0.5
MAX_TEXT_BYTES = 2**20
"""The most of one page, as the service gives it."""


def find_run_dir(text: str, home: Path, *, own: bool = True) -> Path | None:
    """Return the folder that a path or id means; `own`: only runs that no service knows."""
    if (Path(text) / "order.json").is_file():
        return Path(text)
    places = [home / "runs"] if own else [home / "runs", *home.glob("demo/*/runs")]
    rows = (path for place in places for path in place.glob("run_*"))
    found = pick_id(text, Kind.RUN, rows)
    return found if found is not None and (not own or _is_own(found)) else None


def _is_own(folder: Path) -> bool:
    shipped = folder / SHIPPED_NAME
    return shipped.is_file() and NO_SERVICE in shipped.read_text()


def _read_page(
    path: Path, run: str, *, offset: int | None = None, tail: int | None = None
) -> dict[str, Any]:
    """Return the page that begins at a byte of a file, or its last lines, as the service does."""
    begin = max(0, _size_of(path) - MAX_TEXT_BYTES) if offset is None else offset
    raw = b""
    with suppress(FileNotFoundError), path.open("rb") as stream:
        stream.seek(begin)
        raw = stream.read(MAX_TEXT_BYTES)
    lines = raw.decode(errors="replace").splitlines(keepends=True)
    return {
        "run": run,
        "name": path.name,
        "text": "".join(lines if tail is None else lines[-tail:]),
        "offset": begin,
        "next_offset": begin + len(raw),
    }


def logs(
    run: Annotated[
        str,
        typer.Argument(help="Run or experiment (id, beginning, name, `last`), or a directory."),
    ] = "last",
    rank: Annotated[
        int | None,
        typer.Option(help="Log of this rank; default: a command's own, or torchrun's."),
    ] = None,
    tail: Annotated[int, typer.Option(min=1, help="The last so many lines.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until it ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print the log of a run: the command's or torchrun's, or that of one rank."""
    folder = find_run_dir(run, load_settings().home)
    if folder is not None:
        here = RunDir(folder)
        order = load_json(here.order) or {}
        whole = rank is None and not order.get("command") and _size_of(here.torchrun_log) > 0
        path = here.torchrun_log if whole else here.rank_log(rank or 0)
        read = partial(_read_page, path, str(order.get("run") or folder.name))
        _print_log(read, here.exit.exists, run, tail, follow=follow, as_json=as_json)
        return
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            err.print("no run yet")
            return
        log = partial(client.get, f"/runs/{found}/logs")
        if not (empty := log(rank=rank, tail=1))["text"]:
            print_lines([f"{empty['name']}: nothing of it has come"], err)

        def ended() -> bool:
            return client.run(found).state is RunState.ENDED

        _print_log(partial(log, rank=rank), ended, found, tail, follow=follow, as_json=as_json)


def _print_log(
    read: Callable[..., dict[str, Any]],
    has_ended: Callable[[], bool],
    run: str,
    tail: int,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    page = read(tail=tail)
    try:
        while True:
            if as_json:
                print_json(page)
            else:
                print(page["text"], end="", flush=True)
            ended = has_ended()
            if not follow or (ended and not page["text"]):
                return
            time.sleep(POLL_S)
            page = read(offset=page["next_offset"])
    except KeyboardInterrupt:
        err.print(f"\n{run} continues")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
