"""How is an experiment followed live? A phase strip, a progress bar with ETA, and the numbers.

On a terminal one block is redrawn; elsewhere one line is printed whenever something changed, so
that logs stay readable. Ctrl-C ends the watching, never the run.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gonogo.cli.client import Client
from gonogo.cli.connection import connect
from gonogo.cli.exits import Accept, Exit, accepted, exit_of_experiment
from gonogo.cli.look.local_log import LocalLog, find_run_dir, is_run_dir
from gonogo.cli.output import (
    duration,
    err,
    harmless_log,
    out,
    print_json,
    print_lines,
    standing_text,
)
from gonogo.cli.reach.completing import complete_experiments, complete_runs
from gonogo.cli.reach.following import EventStream
from gonogo.cli.reach.naming import resolve_run
from gonogo.cli.screen.near import near_line
from gonogo.cli.screen.stages import stage_of
from gonogo.cli.settings import load_settings
from gonogo.cli.standing import standing_lines
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.near import Near

POLL_S = 0.5
LOOK_EVERY_S = 5.0
"""How old what the stream does not tell may be: the forecast, a suspicion, a loss."""
SETTLE_S = 0.25
PROGRESS = ("step", "loss", "toks_per_s", "last_heartbeat_at")
SAY_EVERY_S = 3.0
STANDS_AFTER_S = 10.0
"""For how long no step has come before that is told."""
WAITING_EVERY_S = 60.0
"""While it waits for a worker or a person: nothing but the age of the wait changes."""
_DONE = (ExperimentState.FINISHED, ExperimentState.AWAITING_DECISION)
_MARK = {
    PhaseState.PENDING: ("○", "dim"),
    PhaseState.ACTIVE: ("●", "bold cyan"),
    PhaseState.PASSED: ("✓", "green"),
    PhaseState.FAILED: ("✗", "bold red"),
    PhaseState.SKIPPED: ("–", "dim"),
    PhaseState.INHERITED: ("↩", "green"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What is shown at one moment."""

    experiment: ExperimentView
    run: RunView | None
    now: datetime
    near: Mapping[str, Near] = field(default_factory=dict)
    """How near each detector of the run is to its limit."""
    stands_s: float = 0.0
    """For how long who watches has seen no step of the run."""

    @property
    def done(self) -> bool:
        """Whether nothing more happens by itself."""
        waits = self.experiment.state is ExperimentState.AWAITING_DECISION
        return self.experiment.state in _DONE and not (
            waits and self.run is not None and self.run.state is not RunState.ENDED
        )


def take_glance(client: Client, experiment: str) -> Glance:
    """Return the present state of an experiment and of its newest run."""
    view = client.experiment(experiment)
    active = [phase for phase in view.phases if phase.runs]
    run = client.run(active[-1].runs[-1]) if active else None
    running = run is not None and run.state is RunState.RUNNING
    near = client.near(run.id) if run is not None and running else {}
    return Glance(experiment=view, run=run, near=near, now=datetime.now(UTC))


class Follower:
    """Keeps the glance at an experiment fresh: by its events, and by looking where none come."""

    def __init__(self, client: Client, experiment: str) -> None:
        self._client, self._experiment = client, experiment
        self._stream = EventStream(client, experiment)
        self._step: tuple[str, int] | None = None
        self._stepped_at = time.monotonic()
        self._look()

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__()

    def _look(self) -> None:
        self.glance = take_glance(self._client, self._experiment)
        self._looked_at = time.monotonic()

    def next(self) -> Glance:
        """Return the glance when something has happened, at the latest after `POLL_S`."""
        heard = self._stream.wait(POLL_S)
        age_s = time.monotonic() - self._looked_at
        if heard.events and age_s < SETTLE_S:
            time.sleep(SETTLE_S - age_s)  # events come in groups
        if heard.events or not heard.connected or age_s > LOOK_EVERY_S:
            self._look()
        else:
            self.glance = advance(self.glance, heard.progress, datetime.now(UTC))
        self._time_step()
        return self.glance

    def _time_step(self) -> None:
        run, now = self.glance.run, time.monotonic()
        step = None if run is None else (run.id, run.step)
        if step != self._step:
            self._step, self._stepped_at = step, now
        self.glance = replace(self.glance, stands_s=now - self._stepped_at)


def advance(glance: Glance, progress: dict[str, Any] | None, now: datetime) -> Glance:
    """Return a glance at `now`, with the numbers that a `progress` event brought for its run."""
    run = glance.run
    if run is not None and progress is not None and progress.get("run") == run.id:
        news = {name: progress[name] for name in PROGRESS if name in progress}
        run = RunView.model_validate(run.wire() | news)  # JSON has words for what is not finite
    return replace(glance, run=run, now=now)


def phase_strip(view: ExperimentView) -> Text:
    """Return the phases as one line: ✓ sanity ● smoke ○ extended."""
    strip = Text()
    for phase in view.phases:
        mark, style = _MARK[phase.state]
        strip.append(f"{mark} {phase.name}  ", style=style)
    return strip


def run_numbers(run: RunView, now: datetime, stands_s: float = 0.0) -> str:
    """Return loss, speed and the age of the last heartbeat as one line, or what is awaited.

    Args:
        run: newest of its experiment.
        now: by the clock of who watches.
        stands_s: for how long no step of it has come.
    """
    stage = stage_of(run, now)
    if stage is not None:
        return stage
    parts = [f"step {run.step}/{run.steps}"]
    if run.loss is not None:
        parts.append(f"loss {run.loss:.4f}")
    if run.toks_per_s:
        parts.append(f"{run.toks_per_s:,.0f} tok/s")
    if run.last_heartbeat_at and run.state is not RunState.ENDED:
        beat = datetime.fromisoformat(run.last_heartbeat_at)
        parts.append(f"last heartbeat {max(0.0, (now - beat).total_seconds()):.1f} s ago")
    if stands_s >= STANDS_AFTER_S and run.state is RunState.RUNNING and run.step < run.steps:
        parts.append(f"no step for {duration(stands_s)}")
    for flag in ("suspect", "lost"):
        if getattr(run, flag):
            parts.append(flag.upper())
    return " · ".join(parts)


def _which(run: RunView) -> str:
    """Return a run's phase, and of a later attempt its number and why there is one."""
    return run.phase if run.attempt == 1 else f"{run.phase} #{run.attempt} ({run.reason})"


def render(glance: Glance) -> Group:
    """Return the block that a terminal shows."""
    view, run = glance.experiment, glance.run
    head = Text.from_markup(
        f"[bold]{escape(view.name)}[/bold] [dim]{view.id}[/dim] {view.state} {standing_text(view)}"
    )
    lines: list[Text | Table] = [head, phase_strip(view)]
    if run is not None:
        grid = Table.grid(padding=(0, 1))
        rest = view.forecast.seconds_p50
        eta = f"about {duration(rest)} left" if rest and not glance.done else ""
        grid.add_row(
            Text(_which(run), style="cyan"),
            ProgressBar(total=run.steps, completed=run.step, width=40),
            Text(eta, style="dim"),
        )
        numbers = run_numbers(run, glance.now, glance.stands_s)
        lines += [grid, Text(f"{run.state}: {numbers}", style="dim")]
        if (nearest := near_line(glance.near)) is not None:
            lines.append(Text(nearest, style="dim"))
    if view.waiting_for:
        lines.append(Text(f"waiting for {view.waiting_for}", style="yellow"))
    if view.cause is not None:
        lines.append(Text(f"why: {view.cause.told()}"))
    lines += [Text(f"decided by hand: {row.phase}", style="cyan") for row in view.overrides]
    if view.waiting_for and view.next:
        lines.append(Text(f"type: {view.next[0].command}", style="bold"))
    return Group(*lines)


def plain_line(glance: Glance) -> str:
    """Return the same on one line, without colours."""
    view, run = glance.experiment, glance.run
    rest = view.forecast.seconds_p50
    parts = [phase_strip(view).plain.strip()]
    if run is not None:
        state = run.state if run.outcome is None else run.outcome.code
        numbers = run_numbers(run, glance.now, glance.stands_s)
        parts.append(f"{_which(run)} {state}: {numbers}")
    if rest and not glance.done:
        parts.append(f"about {duration(rest)} left")
    if view.overrides:
        parts.append(f"decided by hand: {', '.join(row.phase for row in view.overrides)}")
    if view.waiting_for:
        parts.append(f"waiting for {view.waiting_for}")
        parts += [f"type: {row.command}" for row in view.next[:1]]
    return " | ".join(parts)


def why_line(glance: Glance) -> str | None:
    """Return why the last attempt failed, while another one is tried; what ends is told in full."""
    cause = glance.experiment.cause
    return None if cause is None or glance.done else f"why: {cause.told()}"


def watch_experiment(
    client: Client,
    experiment: str,
    *,
    quiet: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> ExperimentView:
    """Follow an experiment on stderr until it finishes or waits for a person; return it.

    Where nothing can be redrawn (no terminal, or a dumb one) lines are printed.

    Args:
        client: the service's.
        experiment: its id.
        quiet: print lines even on a terminal, where a block would be redrawn.
        meanwhile: called before each look.
    """
    with Follower(client, experiment) as follower:
        if err.is_terminal and not err.is_dumb_terminal and not quiet:
            return _watch_block(follower, meanwhile)
        return _watch_lines(follower, meanwhile)


@contextmanager
def following(name: str, again: str) -> Iterator[None]:
    """Follow something within; Ctrl-C ends that alone, and says what to type then.

    Raises:
        Exit: it was interrupted.
    """
    try:
        yield
    except KeyboardInterrupt:
        text = f"\n{name} goes on; {again}"
        err.print(text, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(Exit.INTERRUPTED) from None


def _watch_block(follower: Follower, meanwhile: Callable[[], None]) -> ExperimentView:
    """Redraw one block until nothing more happens."""
    glance = follower.glance
    with Live(render(glance), console=err, auto_refresh=False, transient=False) as live:
        while not glance.done:
            meanwhile()
            glance = follower.next()
            live.update(render(glance), refresh=True)
    return glance.experiment


def _watch_lines(follower: Follower, meanwhile: Callable[[], None]) -> ExperimentView:
    """Print a line whenever something changed, until nothing more happens."""
    glance = follower.glance
    shown: tuple[object, ...] = ()
    told: str | None = None
    said_at = float("-inf")
    while True:
        why = why_line(glance)
        if why not in (None, told):
            err.print(why, markup=False, highlight=False, soft_wrap=True)
            told = why
        mark = _mark_of(glance)
        if mark != shown or time.monotonic() - said_at > say_every_s(glance):
            shown, said_at = mark, time.monotonic()
            err.print(plain_line(glance), markup=False, highlight=False, soft_wrap=True)
        if glance.done:
            return glance.experiment
        meanwhile()
        glance = follower.next()


def say_every_s(glance: Glance) -> float:
    """Return how often a line is worth printing though only ages changed, in seconds."""
    return SAY_EVERY_S if glance.experiment.waiting_for is None else WAITING_EVERY_S


def _mark_of(glance: Glance) -> tuple[object, ...]:
    """Return what must change before another line is worth printing."""
    run = glance.run
    phases = tuple(phase.state for phase in glance.experiment.phases)
    return (phases, run and (run.id, run.state), glance.experiment.waiting_for)


def watch(
    experiment: Annotated[
        str,
        typer.Argument(
            help="Experiment: id, beginning of it, name, or `last`.",
            autocompletion=complete_experiments,
        ),
    ] = "last",
    accept: Accept = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, whenever something changed.")
    ] = False,
) -> None:
    """Follow an experiment live; exits by its verdict."""
    with connect() as client:
        view = client.experiment(experiment)
        with following(view.id, f"follow it again with: gonogo watch {view.id}"):
            final = _watch_json(client, view.id) if as_json else watch_experiment(client, view.id)
    if not as_json:
        out.print(f"{final.id}: {final.state} {standing_text(final)}")
        print_lines(standing_lines(final))
    raise typer.Exit(accepted(exit_of_experiment(final), accept))


def _watch_json(client: Client, experiment: str) -> ExperimentView:
    with Follower(client, experiment) as follower:
        return _print_lines(follower)


def _print_lines(follower: Follower) -> ExperimentView:
    shown: object = None
    glance = follower.glance
    while True:
        run = glance.run.wire() if glance.run else None
        line = {"experiment": glance.experiment.wire(), "run": run}
        if line != shown:
            print_json(line)
            shown = line
        if glance.done:
            return glance.experiment
        glance = follower.next()


def logs(
    run: Annotated[
        str,
        typer.Argument(
            help="Run or experiment: id, beginning, name, or `last`; or a run directory.",
            autocompletion=complete_runs,
        ),
    ] = "last",
    rank: Annotated[
        int | None,
        typer.Option(help="Log of this rank; default: a command's own, or torchrun's."),
    ] = None,
    tail: Annotated[int, typer.Option(min=1, help="The last so many lines.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; one a stretch with --follow.")
    ] = False,
) -> None:
    """Print the log of a run: the command's or torchrun's, or that of one rank."""
    folder = Path(run) if is_run_dir(run) else find_run_dir(run, load_settings().home)
    if folder is not None:
        _print_log(LocalLog(folder, rank), run, tail, follow=follow, as_json=as_json)
        return
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            err.print("no run yet")
            return
        log = _ServiceLog(client=client, run=found, rank=rank)
        _print_log(log, found, tail, follow=follow, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _ServiceLog:
    """The log of a run as the service has it."""

    client: Client
    run: str
    rank: int | None

    def last(self, tail: int) -> dict[str, Any]:
        """Return the last lines; where there are none, which log there is is told."""
        page = self._page(tail=tail)
        if not page["text"]:
            instead = _other_log(self.client, self.run, self.rank)
            told = f"{page['name']}: nothing of it has come{instead}"
            err.print(told, markup=False, highlight=False, soft_wrap=True)
        return page

    def after(self, offset: int) -> dict[str, Any]:
        """Return the stretch that begins at a byte of the file."""
        return self._page(offset=offset)

    def has_ended(self) -> bool:
        """Say whether the run has ended."""
        return self.client.run(self.run).state is RunState.ENDED

    def _page(self, **of: int) -> dict[str, Any]:
        page: dict[str, Any] = self.client.get_patiently(
            f"/runs/{self.run}/logs", rank=self.rank, **of
        )
        return page


def _print_log(
    log: LocalLog | _ServiceLog, run: str, tail: int, *, follow: bool, as_json: bool
) -> None:
    """Print the last lines of a log, and what follows until the run ends."""
    page = log.last(tail)
    try:
        while True:
            if as_json:
                print_json(page)
            else:
                shown = harmless_log(page["text"]) if sys.stdout.isatty() else page["text"]
                print(shown, end="", flush=True)
            ended = log.has_ended()
            if not follow or (ended and not page["text"]):
                return
            time.sleep(POLL_S)
            page = log.after(page["next_offset"])
    except KeyboardInterrupt:
        err.print(f"\n{run} goes on")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _other_log(client: Client, run: str, rank: int | None) -> str:
    """Return which log there is instead: a program that no torchrun starts has that of rank 0."""
    if rank == 0:
        return ""
    page = client.get_patiently(f"/runs/{run}/logs", rank=0, tail=1)
    return f"; {page['name']} is there: gonogo logs {run} --rank 0" if page["text"] else ""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(watch)
    app.command()(logs)
