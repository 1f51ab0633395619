"""How is an experiment followed live? A phase strip, a progress bar with ETA, and the numbers.

On a terminal one block is redrawn; elsewhere one line is printed whenever something changed, so
that logs stay readable. Ctrl-C ends the watching, never the run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gonogo.cli.client import Client
from gonogo.cli.connection import connect
from gonogo.cli.exits import Exit, exit_of_verdict
from gonogo.cli.output import duration, err, out, print_json, verdict_text
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState

POLL_S = 0.5
SAY_EVERY_S = 3.0
_DONE = (ExperimentState.FINISHED, ExperimentState.AWAITING_DECISION)
_MARK = {
    PhaseState.PENDING: ("○", "dim"),
    PhaseState.ACTIVE: ("●", "bold cyan"),
    PhaseState.PASSED: ("✓", "green"),
    PhaseState.FAILED: ("✗", "bold red"),
    PhaseState.SKIPPED: ("–", "dim"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What is shown at one moment."""

    experiment: ExperimentView
    run: RunView | None
    now: datetime

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
    return Glance(experiment=view, run=run, now=datetime.now(UTC))


def phase_strip(view: ExperimentView) -> Text:
    """Return the phases as one line: ✓ sanity ● smoke ○ extended."""
    strip = Text()
    for phase in view.phases:
        mark, style = _MARK[phase.state]
        strip.append(f"{mark} {phase.name}  ", style=style)
    return strip


def run_numbers(run: RunView, now: datetime) -> str:
    """Return loss, speed, ETA and the age of the last heartbeat as one line."""
    parts = [f"step {run.step}/{run.steps}"]
    if run.loss is not None:
        parts.append(f"loss {run.loss:.4f}")
    if run.toks_per_s:
        parts.append(f"{run.toks_per_s:,.0f} tok/s")
    if run.last_heartbeat_at and run.state is not RunState.ENDED:
        beat = datetime.fromisoformat(run.last_heartbeat_at)
        parts.append(f"last heartbeat {max(0.0, (now - beat).total_seconds()):.1f} s ago")
    for flag in ("suspect", "lost"):
        if getattr(run, flag):
            parts.append(flag.upper())
    return " · ".join(parts)


def render(glance: Glance) -> Group:
    """Return the block that a terminal shows."""
    view, run = glance.experiment, glance.run
    head = Text.from_markup(
        f"[bold]{view.name}[/bold] [dim]{view.id}[/dim] {view.state} {verdict_text(view.verdict)}"
    )
    lines: list[Text | Table] = [head, phase_strip(view)]
    if run is not None:
        grid = Table.grid(padding=(0, 1))
        rest = view.forecast.seconds_p50
        eta = f"about {duration(rest)} left" if rest and not glance.done else ""
        grid.add_row(
            Text(f"{run.phase}", style="cyan"),
            ProgressBar(total=run.steps, completed=run.step, width=40),
            Text(eta, style="dim"),
        )
        lines += [grid, Text(run_numbers(run, glance.now), style="dim")]
    if view.waiting_for:
        lines.append(Text(f"waiting for {view.waiting_for}", style="yellow"))
    return Group(*lines)


def plain_line(glance: Glance) -> str:
    """Return the same on one line, without colours."""
    view, run = glance.experiment, glance.run
    rest = view.forecast.seconds_p50
    parts = [phase_strip(view).plain.strip()]
    if run is not None:
        state = run.state if run.outcome is None else run.outcome.code
        parts.append(f"{run.phase} {state}: {run_numbers(run, glance.now)}")
    if rest and not glance.done:
        parts.append(f"about {duration(rest)} left")
    if view.waiting_for:
        parts.append(f"waiting for {view.waiting_for}")
    return " | ".join(parts)


def watch_experiment(
    client: Client,
    experiment: str,
    *,
    quiet: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> ExperimentView:
    """Follow an experiment on stderr until it finishes or waits for a person; return it.

    Args:
        client: the service's.
        experiment: its id.
        quiet: print lines even on a terminal, where a block would be redrawn.
        meanwhile: called before each look.
    """
    glance = take_glance(client, experiment)
    if err.is_terminal and not quiet:
        with Live(render(glance), console=err, auto_refresh=False, transient=False) as live:
            while not glance.done:
                meanwhile()
                time.sleep(POLL_S)
                glance = take_glance(client, experiment)
                live.update(render(glance), refresh=True)
        return glance.experiment
    shown: tuple[object, ...] = ()
    said_at = float("-inf")
    while True:
        mark = _mark_of(glance)
        if mark != shown or time.monotonic() - said_at > SAY_EVERY_S:
            shown, said_at = mark, time.monotonic()
            err.print(plain_line(glance), markup=False, highlight=False, soft_wrap=True)
        if glance.done:
            return glance.experiment
        meanwhile()
        time.sleep(POLL_S)
        glance = take_glance(client, experiment)


def _mark_of(glance: Glance) -> tuple[object, ...]:
    """Return what must change before another line is worth printing."""
    run = glance.run
    phases = tuple(phase.state for phase in glance.experiment.phases)
    return (phases, run and (run.id, run.state), glance.experiment.waiting_for)


def watch(
    experiment: Annotated[str, typer.Argument(help="Experiment id (exp_…), or `last`.")] = "last",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, whenever something changed.")
    ] = False,
) -> None:
    """Follow an experiment live; exits by its verdict."""
    with connect() as client:
        view = client.experiment(experiment)
        try:
            final = _watch_json(client, view.id) if as_json else watch_experiment(client, view.id)
        except KeyboardInterrupt:
            err.print(f"\n{view.id} goes on; follow it again with: gonogo watch {view.id}")
            raise typer.Exit(Exit.INTERRUPTED) from None
    if not as_json:
        out.print(f"{final.id}: {final.state} {verdict_text(final.verdict)}")
    raise typer.Exit(exit_of_verdict(final.verdict, final.outcome.code if final.outcome else None))


def _watch_json(client: Client, experiment: str) -> ExperimentView:
    shown: object = None
    while True:
        glance = take_glance(client, experiment)
        run = glance.run.wire() if glance.run else None
        line = {"experiment": glance.experiment.wire(), "run": run}
        if line != shown:
            print_json(line)
            shown = line
        if glance.done:
            return glance.experiment
        time.sleep(POLL_S)


def logs(
    run: Annotated[str, typer.Argument(help="Run id (run_…), experiment id, or `last`.")] = "last",
    rank: Annotated[int | None, typer.Option(help="Log of this rank; default: torchrun's.")] = None,
    tail: Annotated[int, typer.Option(min=1, help="The last so many lines.")] = 100,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
) -> None:
    """Print the log of a run."""
    with connect() as client:
        if not run.startswith("run_"):
            active = [phase for phase in client.experiment(run).phases if phase.runs]
            if not active:
                err.print("no run yet")
                return
            run = active[-1].runs[-1]
        page = client.get_patiently(f"/runs/{run}/logs", rank=rank, tail=tail)
        try:
            while True:
                print(page["text"], end="", flush=True)
                ended = client.run(run).state is RunState.ENDED
                if not follow or (ended and not page["text"]):
                    return
                time.sleep(POLL_S)
                page = client.get_patiently(
                    f"/runs/{run}/logs", rank=rank, offset=page["next_offset"]
                )
        except KeyboardInterrupt:
            err.print(f"\n{run} goes on")
            raise typer.Exit(Exit.INTERRUPTED) from None


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(watch)
    app.command()(logs)
