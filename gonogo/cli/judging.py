"""Which commands judge without any service? `judge`, `replay` and `forecast`.

They read run directories and decision files; nothing else is asked.
"""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.connection import connect
from gonogo.cli.exits import Exit, exit_of_verdict
from gonogo.cli.experiments import load_plan_argument
from gonogo.cli.output import duration, out, print_fields, print_json, verdict_text
from gonogo.cli.settings import load_settings
from gonogo.contract.api import Forecast
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.ids import Kind, is_id
from gonogo.judge.forecast import seconds_at_speed
from gonogo.judge.offline import judge_directory
from gonogo.judge.replay import load_decision, replay_decision, run_dir_of

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def judge(
    directory: Annotated[Path, typer.Argument(help="A run directory, ours or the predecessor's.")],
    plan: Annotated[
        str | None, typer.Option(help="Rules of this plan, where there is no order.json.")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Phase of that plan.")] = None,
    now: Annotated[
        str | None, typer.Option(help="Where the clock stops: Unix seconds or RFC 3339.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge a run directory: criteria, findings, and what could not be observed."""
    if not directory.is_dir():
        raise NotFound(f"{directory}: no such directory")
    if (plan is None) != (phase is None):
        raise Rejected("--plan and --phase go together")
    data = load_plan_argument(plan) if plan else None
    clock = None if now is None else parse_time(now)
    document = judge_directory(directory, plan=data, phase=phase, now=clock)
    if as_json:
        print_json(document)
    else:
        _print_judged(document)
    verdict = document["verdict"]
    raise typer.Exit(exit_of_verdict(Verdict(verdict) if verdict else None))


def parse_time(text: str) -> float:
    """Return Unix seconds from Unix seconds or RFC 3339.

    Raises:
        Rejected: neither.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Rejected(f"--now: found {text!r}; expected Unix seconds or RFC 3339") from error
    if moment.tzinfo is None:
        raise Rejected(f"--now: found {text!r}; expected a time zone (…Z)")
    return moment.timestamp()


def _print_judged(document: dict[str, Any]) -> None:
    for row in document["criteria"]:
        out.print(
            f"  {row['outcome']:<12} {row['id']:<18} {row['evidence']}",
            highlight=False,
            markup=False,
        )
    for finding in document["findings"]:
        out.print(
            f"  {finding['severity']:<12} {finding['detector']:<18} {finding['text']}",
            highlight=False,
            markup=False,
        )
    for text in document["not_observed"]:
        out.print(f"  not observed: {text}", highlight=False, markup=False)
    out.print(f"verdict  {verdict_text(document['verdict'])}")


def find_decision(name: str, home: Path) -> Path:
    """Return the file of a decision: a path, or an id in `decisions/` and below `demo/`.

    Raises:
        NotFound: neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    if is_id(name, Kind.DECISION):
        places = [home / "decisions", *sorted(home.glob("demo/*/decisions"), reverse=True)]
        for place in places:
            if (place / f"{name}.json").is_file():
                return place / f"{name}.json"
    raise NotFound(f"{name}: no such file, and no such decision in {home}/decisions or below demo/")


def replay(
    decision: Annotated[str, typer.Argument(help="Decision id (dec_…) or decision file.")],
    facts_only: Annotated[
        bool, typer.Option("--facts-only", help="From the recorded facts; no run directory.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge again from the recorded evidence; exit 1 names the first difference."""
    path = find_decision(decision, load_settings().home)
    recorded = load_decision(path)
    folder = run_dir_of(recorded, path)
    result = replay_decision(recorded, folder, facts_only=facts_only)
    if as_json:
        print_json({"id": recorded.id, **wire_value(asdict(result))})
    elif result.equal:
        out.print(f"{recorded.id}: {verdict_text(recorded.verdict)} again; {result.text}")
    else:
        out.print(f"{recorded.id}: {result.text}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(Exit.OK if result.equal else Exit.UNEXPECTED)


def forecast(
    experiment: Annotated[
        str | None, typer.Argument(help="Experiment id, or `last`; or give --steps … instead.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to go.")] = None,
    tokens_per_step: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 4096,
    tok_s: Annotated[float | None, typer.Option(min=1e-9, help="Tokens per second.")] = None,
    as_json: Json = False,
) -> None:
    """Say how long it takes: arithmetic, not hope."""
    if experiment is None:
        if steps is None or tok_s is None:
            raise Rejected("give an experiment, or --steps and --tok-s")
        seconds = seconds_at_speed(steps=steps, tokens_per_step=tokens_per_step, tok_s=tok_s)
        basis = f"{steps} steps of {tokens_per_step} tokens at {tok_s:g} tokens/s"
        found = Forecast(seconds_p50=seconds, seconds_p90=seconds, basis=basis)
    else:
        with connect() as client:
            found = client.experiment(experiment).forecast
    if as_json:
        print_json(found.wire())
        return
    print_fields(
        {
            "half of such runs take": duration(found.seconds_p50),
            "nine in ten take": duration(found.seconds_p90),
            "claimed": duration(found.claimed_seconds),
            "basis": found.basis,
        }
    )


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(judge)
    app.command()(replay)
    app.command()(forecast)
