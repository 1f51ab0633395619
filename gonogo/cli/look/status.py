"""Is everything well? `gonogo status`: service, workers, what goes on, what waits for me."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.client import Client
from gonogo.cli.connection import client_of
from gonogo.cli.exits import Exit
from gonogo.cli.look.lists import load_workers, styled
from gonogo.cli.output import duration, out, print_fields, print_json
from gonogo.cli.screen.stages import stage_of
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.api import ExperimentView, RunView, WorkerView
from gonogo.contract.errors import GonogoError, Unavailable
from gonogo.contract.lifecycle import ExperimentState

_GOING_ON = (ExperimentState.RUNNING, ExperimentState.STOPPING, ExperimentState.QUEUED)
SHOWN = 20
"""Experiments of each state that are looked at."""
COMMANDS = 3
"""What can be typed next, at most so much of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How things stand in one home."""

    url: str
    source: str
    home: str
    up: bool
    ready: bool = False
    problem: str | None = None
    version: str | None = None
    workers: tuple[WorkerView, ...] = ()
    going_on: tuple[ExperimentView, ...] = ()
    waiting: tuple[ExperimentView, ...] = ()
    runs: tuple[RunView, ...] = ()
    """The newest run of each experiment that goes on."""

    def wire(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "up": self.up,
            "ready": self.ready,
            "url": self.url,
            "source": self.source,
            "problem": self.problem,
            "version": self.version,
            "home": self.home,
            "workers": [row.wire() for row in self.workers],
            "going_on": [row.wire() for row in self.going_on],
            "waiting": [row.wire() for row in self.waiting],
        }


def load_status(settings: Settings) -> Status:
    """Return how things stand; a service that does not answer is one of the answers.

    Raises:
        NotAllowed: the service does not know the key.
    """
    url, source, home = settings.url, settings.service.source, str(settings.home)
    with client_of(settings) as client:
        try:
            version = client.get(f"{url}/healthz").get("version")
        except GonogoError as error:
            return Status(url=url, source=source, home=home, up=False, problem=error.detail)
        try:
            client.get(f"{url}/readyz")
            going_on = _experiments(client, *_GOING_ON)
            return Status(
                url=url,
                source=source,
                home=home,
                up=True,
                ready=True,
                version=version,
                workers=tuple(load_workers(client)),
                going_on=going_on,
                waiting=_experiments(client, ExperimentState.AWAITING_DECISION),
                runs=tuple(_newest_runs(client, going_on)),
            )
        except Unavailable as error:
            problem = error.detail
    return Status(url=url, source=source, home=home, up=True, version=version, problem=problem)


def _experiments(client: Client, *states: ExperimentState) -> tuple[ExperimentView, ...]:
    """Return the newest experiments in some states, state by state."""
    pages = [client.get("/experiments", state=state.value, limit=SHOWN) for state in states]
    return tuple(ExperimentView.model_validate(row) for page in pages for row in page["items"])


def _newest_runs(client: Client, experiments: tuple[ExperimentView, ...]) -> list[RunView]:
    runs = [[run for phase in view.phases for run in phase.runs] for view in experiments]
    return [client.run(max(ids)) for ids in runs if ids]


def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say whether the service is up, what goes on and what waits for you; exit 5: not up."""
    found = load_status(load_settings())
    if as_json:
        print_json(found.wire())
    else:
        _print_status(found)
    raise typer.Exit(Exit.OK if found.ready else Exit.UNREACHABLE)


def _print_status(found: Status) -> None:
    said = "[green]up[/green]" if found.ready else "[bold red]not up[/bold red]"
    if found.up and not found.ready:
        said = "[yellow]up, but not ready[/yellow]"
    fields = {"service": f"{said}  {found.url}", "home": escape(found.home)}
    if found.problem is not None:
        fields["why"] = escape(found.problem)
    if found.ready:
        fields["workers"] = _workers_text(found.workers)
    print_fields(fields)
    if not found.ready:
        return
    runs = {run.experiment: run for run in found.runs}
    out.print("\n[bold]goes on[/bold]" if found.going_on else "\nnothing goes on")
    for view in found.going_on:
        out.print(f"  {view.id}  {escape(view.name)}", highlight=False)
        out.print(f"      {escape(_progress_text(view, runs.get(view.id)))}", highlight=False)
    out.print("\n[bold]waits for you[/bold]" if found.waiting else "\nnothing waits for you")
    for view in found.waiting:
        out.print(f"  {view.id}  {escape(view.name)}", highlight=False)
        out.print(f"      [yellow]{escape(view.waiting_for or 'a decision')}[/yellow]")
        rows = view.next[:COMMANDS]
        wide = max((len(row.command) for row in rows), default=0)
        for row in rows:
            line = f"      {escape(row.command.ljust(wide))}  [dim]# {escape(row.text)}[/dim]"
            out.print(line, soft_wrap=True)  # a command is typed, or copied, whole


def _workers_text(rows: tuple[WorkerView, ...]) -> str:
    living = [row for row in rows if row.state != "silent"]
    if not living:
        quiet = f", {len(rows)} silent" if rows else ""
        return f"[yellow]none is up{quiet}[/yellow]: start one with `gonogo worker`"
    free = sum(len(row.free) for row in living)
    devices = sum(len(row.devices) for row in living)
    silent = len(rows) - len(living)
    text = f"{len(living)} {styled('up')}, {free} of {devices} devices free"
    return f"{text}, {silent} {styled('silent')}" if silent else text


def _progress_text(view: ExperimentView, run: RunView | None) -> str:
    """Return what an experiment is at, on one line."""
    parts = [str(view.state)]
    stage = stage_of(run, datetime.now(UTC)) if run is not None else None
    if run is not None and stage is not None:
        parts = [f"{run.phase}: {stage}"]
    elif run is not None:
        parts = [f"{run.phase} {run.step}/{run.steps}"]
        if run.loss is not None:
            parts.append(f"loss {run.loss:.4f}")
        parts += [flag.upper() for flag in ("suspect", "lost") if getattr(run, flag)]
    if view.forecast.seconds_p50 is not None:
        parts.append(f"about {duration(view.forecast.seconds_p50)} left")
    if view.waiting_for:
        parts.append(f"waits for {view.waiting_for}")
    return " · ".join(parts)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(status)
