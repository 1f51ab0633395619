"""`gonogo logs`: the log of a run, from the service or from a run directory."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.client import Client, connect
from gonogo.cli.exits import Exit
from gonogo.cli.naming import pick_id, resolve_run
from gonogo.cli.output import Json, err, print_json, print_lines
from gonogo.cli.settings import load_settings
from gonogo.contract.ids import Kind
from gonogo.contract.lifecycle import RunState
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir
from gonogo.supervise.durable import load_json

POLL_S = 0.5
MAX_TEXT_BYTES = 2**20
"""The most of one page, as the service gives it."""


def find_run_dir(text: str, home: Path, *, own: bool = True) -> Path | None:
    """Return a run directory: a path, or a run of this home by its id; None when none fits.

    Args:
        text: a path, a run's id, what is shown of it, or the beginning of it.
        home: GONOGO_HOME.
        own: only runs of `gonogo run`, which no service knows; else also others and demos.
    """
    if (Path(text) / "order.json").is_file():
        return Path(text)
    places = [home / "runs"] if own else [home / "runs", *home.glob("demo/*/runs")]
    rows = (path for place in places for path in place.glob("run_*"))
    found = pick_id(text, Kind.RUN, rows)
    return found if found is not None and (not own or _is_own(found)) else None


def _is_own(folder: Path) -> bool:
    shipped = folder / SHIPPED_NAME
    return shipped.is_file() and NO_SERVICE in shipped.read_text()


Page = Mapping[str, Any]
"""`{run, name, text, offset, next_offset}`."""


class LocalLog:
    """The log of a run directory: a rank's, or else the program's or torchrun's."""

    def __init__(self, folder: Path, rank: int | None) -> None:
        self._dir = RunDir(folder)
        self._order = load_json(self._dir.order) or {}
        agent = self._dir.torchrun_log
        whole = rank is None and not self._order.get("command") and _size_of(agent) > 0
        self._path = agent if whole else self._dir.rank_log(rank or 0)

    def last(self, tail: int) -> Page:
        """Return the last lines."""
        page = self.after(max(0, _size_of(self._path) - MAX_TEXT_BYTES))
        return {**page, "text": "".join(page["text"].splitlines(keepends=True)[-tail:])}

    def after(self, offset: int) -> Page:
        """Return the page that begins at a byte of the file."""
        raw = b""
        with suppress(FileNotFoundError), self._path.open("rb") as stream:
            stream.seek(offset)
            raw = stream.read(MAX_TEXT_BYTES)
        return {
            "run": str(self._order.get("run") or self._dir.path.name),
            "name": self._path.name,
            "text": raw.decode(errors="replace"),
            "offset": offset,
            "next_offset": offset + len(raw),
        }

    def has_ended(self) -> bool:
        """Say whether the run has ended."""
        return self._dir.exit.exists()


class ServiceLog:
    """The log of a run as the service has it."""

    def __init__(self, client: Client, run: str, rank: int | None) -> None:
        self._client, self._run, self._rank = client, run, rank

    def last(self, tail: int) -> Page:
        """Return the last lines; without any, print on stderr which log there is."""
        page = self._page(self._rank, tail=tail)
        if not page["text"]:
            first = page if self._rank == 0 else self._page(0, tail=1)
            there = f"; {first['name']} is there: gonogo logs {self._run} --rank 0"
            instead = there if first["text"] else ""
            print_lines([f"{page['name']}: nothing of it has come{instead}"], err)
        return page

    def after(self, offset: int) -> Page:
        """Return the page that begins at a byte of the file."""
        return self._page(self._rank, offset=offset)

    def has_ended(self) -> bool:
        """Say whether the run has ended."""
        return self._client.run(self._run).state is RunState.ENDED

    def _page(self, rank: int | None, **of: int) -> Page:
        page: Page = self._client.get(f"/runs/{self._run}/logs", rank=rank, **of)
        return page


def logs(
    run: Annotated[
        str,
        typer.Argument(
            help="Run or experiment: id, beginning, name, or `last`; or a run directory."
        ),
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
        _print_log(LocalLog(folder, rank), run, tail, follow=follow, as_json=as_json)
        return
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            err.print("no run yet")
            return
        log = ServiceLog(client, found, rank)
        _print_log(log, found, tail, follow=follow, as_json=as_json)


def _print_log(
    log: LocalLog | ServiceLog, run: str, tail: int, *, follow: bool, as_json: bool
) -> None:
    page = log.last(tail)
    try:
        while True:
            if as_json:
                print_json(page)
            else:
                print(page["text"], end="", flush=True)
            ended = log.has_ended()
            if not follow or (ended and not page["text"]):
                return
            time.sleep(POLL_S)
            page = log.after(page["next_offset"])
    except KeyboardInterrupt:
        err.print(f"\n{run} continues")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
