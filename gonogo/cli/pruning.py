"""`gonogo prune` removes old run directories, on the host of the home.

The service says which experiments are over. Without it only runs of `gonogo run` are removed.
"""

import math
import time
from typing import Annotated

import typer

from gonogo.cli.client import Client, connect
from gonogo.cli.exits import Exit
from gonogo.cli.output import Json, print_json, print_lines, say, size_text
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import NotFound, Rejected, Unavailable
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.wire import Recorded
from gonogo.supervise.prune import (
    NOBODY_SAYS,
    Choice,
    Course,
    Policy,
    RunFacts,
    decide,
    load_facts,
    old_enough,
)
from gonogo.supervise.prune import prune as prune_directory


class PrunedRun(Recorded):
    """A run directory that goes, as a whole or its checkpoints."""

    run: str
    experiment: str
    what: str
    """`all` or `checkpoints`."""
    bytes: int
    problem: str | None = None
    """Why it is still there, or some of it."""


class KeptRun(Recorded):
    """A run directory that stays."""

    run: str
    experiment: str
    why: str


class Pruned(Recorded):
    """`gonogo prune`."""

    home: str
    dry_run: bool
    keep_days: float
    keep: int
    checkpoints_only: bool
    bytes: int
    """What was freed, or with `--dry-run` would be."""
    pruned: list[PrunedRun]
    kept: list[KeptRun]


def prune(
    keep_days: Annotated[
        float, typer.Option(min=0.0, help="Keep experiments that ended within so many days.")
    ] = 30.0,
    keep: Annotated[
        int, typer.Option(min=0, help="Keep so many experiments besides, the newest.")
    ] = 0,
    checkpoints_only: Annotated[
        bool, typer.Option("--checkpoints-only", help="Keep all but the checkpoints.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove old run directories of this home; what may still be needed stays."""
    if math.isnan(keep_days):
        raise Rejected("--keep-days: found nan; expected a number of days")
    settings, now = load_settings(), time.time()  # the edge: a command is run now
    policy = Policy(keep_days=keep_days, keep=keep, checkpoints_only=checkpoints_only)
    facts = load_facts(settings.home)
    course = _ask(settings, old_enough(facts, policy, now))
    choices = decide(facts, policy, course, now)
    done = [_removed(row, settings, policy, now, dry_run=dry_run) for row in choices]
    kept = [row for row in done if isinstance(row, KeptRun)]
    gone = [row for row in done if isinstance(row, PrunedRun)]
    told = Pruned(
        home=str(settings.home),
        dry_run=dry_run,
        keep_days=keep_days,
        keep=keep,
        checkpoints_only=checkpoints_only,
        bytes=sum(row.bytes for row in gone if row.problem is None),
        pruned=gone,
        kept=kept,
    )
    if as_json:
        print_json(told.wire())
    else:
        _print(told)
    if any(row.problem for row in gone):
        raise typer.Exit(Exit.UNEXPECTED)


def _ask(settings: Settings, facts: list[RunFacts]) -> Course:
    """Return what the service knows of the experiments of these runs; without it all stay."""
    experiments = sorted(
        {row.experiment for row in facts if row.known and row.ended_at is not None}
    )
    if not experiments:
        return NOBODY_SAYS
    try:
        with connect(settings) as client:
            return Course(
                finished=dict(_finished(client, experiments)), begun_from=_begun_from(client)
            )
    except Unavailable as error:
        say(f"{len(experiments)} experiments are kept: {error.detail}")
        return NOBODY_SAYS


def _finished(client: Client, experiments: list[str]) -> dict[str, bool]:
    found = {}
    for experiment in experiments:
        view = _view_of(client, experiment)
        if view is not None:
            found[experiment] = view.state is ExperimentState.FINISHED
    return found


def _view_of(client: Client, experiment: str) -> ExperimentView | None:
    """Return how the service shows an experiment; None where it knows none of that id."""
    try:
        return ExperimentView.model_validate(client.get(f"/experiments/{experiment}"))
    except NotFound:
        return None


def _begun_from(client: Client) -> set[str]:
    """Return the experiments whose checkpoints an unfinished experiment may need."""
    open_states = [state for state in ExperimentState if state is not ExperimentState.FINISHED]
    rows = [row for state in open_states for row in client.pages("/experiments", state=state)]
    views: list[ExperimentView | None] = [ExperimentView.model_validate(row) for row in rows]
    found: set[str] = set()
    while views:
        view = views.pop()
        if view is None or view.origin is None or view.origin.experiment in found:
            continue
        found.add(view.origin.experiment)
        views.append(_view_of(client, view.origin.experiment))
    return found


def _removed(
    choice: Choice, settings: Settings, policy: Policy, now: float, *, dry_run: bool
) -> PrunedRun | KeptRun:
    """Remove what was chosen, and say what came of it."""
    if choice.what is None:
        return KeptRun(run=choice.run, experiment=choice.experiment, why=choice.why)
    problem = None
    if not dry_run:
        path = settings.home / "runs" / choice.run
        text = f"gonogo prune --keep-days {policy.keep_days:g} --keep {policy.keep}"
        try:
            if not prune_directory(path, choice.what, policy=text, now=now):
                return KeptRun(run=choice.run, experiment=choice.experiment, why="a keeper has it")
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror or error}"
    return PrunedRun(
        run=choice.run,
        experiment=choice.experiment,
        what=choice.what,
        bytes=choice.bytes,
        problem=problem,
    )


def _print(told: Pruned) -> None:
    verb = "would go" if told.dry_run else "removed"
    for row in told.pruned:
        what = "checkpoints of " if row.what == "checkpoints" else ""
        text = f"{verb}: {what}{row.run} ({row.experiment}), {size_text(row.bytes)}"
        print_lines([text if row.problem is None else f"{text}; not all of it: {row.problem}"])
    whys: dict[str, int] = {}
    for kept in told.kept:
        whys[kept.why] = whys.get(kept.why, 0) + 1
    print_lines(f"kept: {count}, {why}" for why, count in sorted(whys.items()))
    print_lines([f"{size_text(told.bytes)} {verb} of {told.home}/runs"])
