"""`gonogo prune` removes old run directories, on the host of the home.

The service says which experiments are over. Without it only runs of `gonogo run` are removed.
"""

import time
from collections import Counter
from typing import Annotated, Any

import typer

from gonogo.cli.client import Client, connect
from gonogo.cli.exits import Exit
from gonogo.cli.output import Json, print_json, print_lines, say, size_text
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import NotFound, Unavailable
from gonogo.contract.lifecycle import ExperimentState
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


def prune(
    keep_days: Annotated[
        float,
        typer.Option(min=0.0, max=1e6, help="Keep experiments that ended within so many days."),
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
    settings, now = load_settings(), time.time()
    policy = Policy(keep_days=keep_days, keep=keep, checkpoints_only=checkpoints_only)
    facts = load_facts(settings.home)
    choices = decide(facts, policy, _ask(settings, old_enough(facts, policy, now)), now)
    done = [_removed(row, settings, policy, now, dry_run=dry_run) for row in choices]
    gone = [row for row in done if "why" not in row]
    found: dict[str, Any] = {
        "home": str(settings.home),
        "dry_run": dry_run,
        "keep_days": keep_days,
        "keep": keep,
        "checkpoints_only": checkpoints_only,
        "bytes": sum(row["bytes"] for row in gone if row["problem"] is None),
        "pruned": gone,
        "kept": [row for row in done if "why" in row],
    }
    if as_json:
        print_json(found)
    else:
        _print(found)
    if any(row["problem"] for row in gone):
        raise typer.Exit(Exit.UNEXPECTED)


def _ask(settings: Settings, facts: list[RunFacts]) -> Course:
    """Return what the service knows of the experiments of these runs; without it all stay."""
    names = sorted({row.experiment for row in facts if row.known and row.ended_at is not None})
    if not names:
        return NOBODY_SAYS
    try:
        with connect(settings) as client:
            views = [view for name in names if (view := _view_of(client, name)) is not None]
            finished = {view.id: view.state is ExperimentState.FINISHED for view in views}
            return Course(finished=finished, begun_from=_begun_from(client))
    except Unavailable as error:
        say(f"{len(names)} experiments are kept: {error.detail}")
        return NOBODY_SAYS


def _view_of(client: Client, experiment: str) -> ExperimentView | None:
    """Return how the service shows an experiment; None where it knows none of that id."""
    try:
        return client.experiment(experiment)
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
) -> dict[str, Any]:
    """Remove what was chosen; return `{run, experiment, why}` of what is kept, else what went."""
    row: dict[str, Any] = {"run": choice.run, "experiment": choice.experiment}
    if choice.what is None:
        return {**row, "why": choice.why}
    problem = None
    if not dry_run:
        path = settings.home / "runs" / choice.run
        text = f"gonogo prune --keep-days {policy.keep_days:g} --keep {policy.keep}"
        try:
            if not prune_directory(path, choice.what, policy=text, now=now):
                return {**row, "why": "a keeper has it"}
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror or error}"
    return {**row, "what": choice.what, "bytes": choice.bytes, "problem": problem}


def _print(found: dict[str, Any]) -> None:
    verb = "would go" if found["dry_run"] else "removed"
    for row in found["pruned"]:
        what = "checkpoints of " if row["what"] == "checkpoints" else ""
        text = f"{verb}: {what}{row['run']} ({row['experiment']}), {size_text(row['bytes'])}"
        print_lines([f"{text}; not all of it: {row['problem']}" if row["problem"] else text])
    whys = Counter(row["why"] for row in found["kept"])
    print_lines(f"kept: {count}, {why}" for why, count in sorted(whys.items()))
    print_lines([f"{size_text(found['bytes'])} {verb} of {found['home']}/runs"])
