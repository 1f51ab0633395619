"""`gonogo watch`: follow an experiment live. Ctrl-C ends the watching, never the run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import typer
from rich.live import Live
from rich.text import Text

from gonogo.cli.client import Client, Id, connect
from gonogo.cli.exits import Accept, Exit, accepted, exit_of_experiment
from gonogo.cli.judging import experiment_lines, wait_of
from gonogo.cli.output import Json, duration, err, out, print_json, print_lines, standing_text
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.wire import short_id

LOOK_EVERY_S = 1.0
SAY_EVERY_S = 3.0
STANDS_AFTER_S = 10.0
"""How long without a step before that is shown."""
WAITING_EVERY_S = 60.0
"""How often a line is printed while an experiment waits for a worker or a person."""
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
    stands_s: float = 0.0
    """Seconds since the last new step was seen."""

    @property
    def done(self) -> bool:
        """Whether nothing more happens by itself."""
        waits = self.experiment.state is ExperimentState.AWAITING_DECISION
        return self.experiment.state in _DONE and not (
            waits and self.run is not None and self.run.state is not RunState.ENDED
        )


def glances_of(client: Client, experiment: str) -> Iterator[Glance]:
    """Yield a fresh glance at an experiment every second; the last one is done."""
    seen: tuple[str, int] | None = None
    stepped_at = time.monotonic()
    while True:
        view = client.experiment(experiment)
        active = [phase for phase in view.phases if phase.runs]
        run = client.run(active[-1].runs[-1]) if active else None
        step = None if run is None else (run.id, run.step)
        if step != seen:
            seen, stepped_at = step, time.monotonic()
        glance = Glance(
            experiment=view,
            run=run,
            now=datetime.now(UTC),
            stands_s=time.monotonic() - stepped_at,
        )
        yield glance
        if glance.done:
            return
        time.sleep(LOOK_EVERY_S)


def phase_strip(view: ExperimentView) -> Text:
    """Return the phases as one line: ✓ sanity ● smoke ○ extended."""
    strip = Text()
    for phase in view.phases:
        mark, style = _MARK[phase.state]
        strip.append(f"{mark} {phase.name}  ", style=style)
    return strip


def run_numbers(run: RunView, now: datetime, stands_s: float = 0.0) -> str:
    """Return loss, speed and the age of the last heartbeat as one line, or what a run waits for."""
    wait = wait_of(run, now)
    if wait is not None:
        return wait
    parts = [f"step {run.step}/{run.steps}"]
    parts += [] if run.loss is None else [f"loss {run.loss:.4f}"]
    parts += [f"{run.toks_per_s:,.0f} tok/s"] if run.toks_per_s else []
    if run.last_heartbeat_at and run.state is not RunState.ENDED:
        beat = datetime.fromisoformat(run.last_heartbeat_at)
        parts.append(f"last heartbeat {max(0.0, (now - beat).total_seconds()):.1f} s ago")
    if stands_s >= STANDS_AFTER_S and run.state is RunState.RUNNING and run.step < run.steps:
        parts.append(f"no step for {duration(stands_s)}")
    parts += [flag.upper() for flag in ("suspect", "lost") if getattr(run, flag)]
    return " · ".join(parts)


def parts_of(glance: Glance) -> list[str]:
    """Return what is shown of a moment, a sentence each; the phases come before it."""
    view, run, parts = glance.experiment, glance.run, list[str]()
    if run is not None:
        state = run.state if run.outcome is None else run.outcome.code
        again = "" if run.attempt == 1 else f" #{run.attempt} ({run.reason})"
        numbers = run_numbers(run, glance.now, glance.stands_s)
        parts.append(f"{run.phase}{again} {state}: {numbers}")
    rest = view.forecast.seconds_p50
    if rest and not glance.done:
        parts.append(f"about {duration(rest)} left")
    if view.overrides:
        parts.append(f"decided by hand: {', '.join(row.phase for row in view.overrides)}")
    if view.waiting_for:
        parts.append(f"waiting for {view.waiting_for}")
        parts += [f"type: {row.command}" for row in view.next[:1]]
    return parts


def render(glance: Glance) -> Text:
    """Return the block that a terminal shows."""
    view = glance.experiment
    head = Text.from_markup(f"[dim]{short_id(view.id)}[/dim] {view.state} {standing_text(view)}")
    more = [] if view.cause is None else [f"why: {view.cause.told()}"]
    rows = [Text(view.name, style="bold") + " " + head, phase_strip(view)]
    return Text("\n").join([*rows, *map(Text, parts_of(glance)), *map(Text, more)])


def plain_line(glance: Glance) -> str:
    """Return the same on one line, without colours."""
    return " | ".join([phase_strip(glance.experiment).plain.strip(), *parts_of(glance)])


def watch_experiment(client: Client, experiment: str, *, quiet: bool = False) -> ExperimentView:
    """Follow an experiment on stderr until it finishes or waits for a person; return it."""
    glances = glances_of(client, experiment)
    if not err.is_terminal or err.is_dumb_terminal or quiet:
        return _watch_lines(glances)
    with Live(console=err, auto_refresh=False) as live:
        for glance in glances:
            live.update(render(glance), refresh=True)
    return glance.experiment


@contextmanager
def following(name: str, again: str) -> Iterator[None]:
    """Follow something within; Ctrl-C ends that alone, and shows what to type then."""
    try:
        yield
    except KeyboardInterrupt:
        print_lines([f"\n{name} continues; {again}"], err)
        raise typer.Exit(Exit.INTERRUPTED) from None


def _watch_lines(glances: Iterator[Glance]) -> ExperimentView:
    """Print a line when something changed, and every few seconds the numbers."""
    shown, told, printed_at = None, None, float("-inf")
    for glance in glances:
        view, run = glance.experiment, glance.run
        if view.cause not in (None, told) and view.cause is not None and not glance.done:
            told = view.cause
            print_lines([f"why: {told.told()}"], err)
        phases = [phase.state for phase in view.phases]
        state = (phases, run and (run.id, run.state), view.waiting_for)
        every_s = SAY_EVERY_S if view.waiting_for is None else WAITING_EVERY_S
        if state != shown or time.monotonic() - printed_at > every_s:
            shown, printed_at = state, time.monotonic()
            print_lines([plain_line(glance)], err)
    return glance.experiment


def watch(experiment: Id = "last", accept: Accept = None, as_json: Json = False) -> None:
    """Follow an experiment live; exits by its verdict."""
    with connect() as client:
        view = client.experiment(experiment)
        with following(view.id, f"follow it again with: gonogo watch {view.id}"):
            final = _watch_json(client, view.id) if as_json else watch_experiment(client, view.id)
    if not as_json:
        print_final(final)
    raise typer.Exit(accepted(exit_of_experiment(final), accept))


def print_final(view: ExperimentView) -> None:
    """Print state and verdict of an experiment, and what to type next."""
    out.print(f"{view.id}: {view.state} {standing_text(view)}")
    print_lines(experiment_lines(view))


def _watch_json(client: Client, experiment: str) -> ExperimentView:
    shown: object = None
    for glance in glances_of(client, experiment):
        run = glance.run.wire() if glance.run else None
        line = {"experiment": glance.experiment.wire(), "run": run}
        if line != shown:
            print_json(line)
            shown = line
    return glance.experiment
