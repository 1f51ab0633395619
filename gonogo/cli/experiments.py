"""Which commands submit, show and steer experiments? Each is one call of the REST API."""

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.connection import connect, parse_pairs, parse_sets
from gonogo.cli.exits import exit_of_verdict
from gonogo.cli.output import (
    duration,
    out,
    print_fields,
    print_json,
    print_table,
    verdict_text,
)
from gonogo.cli.watching import watch_experiment
from gonogo.contract.api import ExperimentView
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.plan_source import bundled_plan_names
from gonogo.contract.yaml_text import parse_yaml

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Id = Annotated[str, typer.Argument(help="Experiment id (exp_…), or `last`.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; recorded with the action.")]


def load_plan_argument(plan: str) -> str | dict[str, Any]:
    """Return a bundled plan's name, or the data in a YAML file.

    Raises:
        NotFound: neither a bundled plan nor a file.
    """
    if plan in bundled_plan_names():
        return plan
    try:
        data: dict[str, Any] = parse_yaml(Path(plan).read_text())
    except OSError as error:
        names = ", ".join(bundled_plan_names())
        raise NotFound(f"{plan}: neither a plan file nor one of {names}") from error
    return data


def submit(
    plan: Annotated[str, typer.Argument(help="Bundled plan's name, or a YAML file.")],
    name: Annotated[str | None, typer.Option(help="Name of the experiment.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override, e.g. phases.smoke.steps=20.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label k=v.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat safely: the same key submits once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show what would run.")] = False,
    wait: Annotated[bool, typer.Option(help="Watch until it ends; exit by verdict.")] = False,
    as_json: Json = False,
) -> None:
    """Submit an experiment."""
    body = {
        "plan": load_plan_argument(plan),
        "name": name,
        "set": parse_sets(set_ or []),
        "labels": parse_pairs(label or [], "--label"),
        "dry_run": dry_run,
    }
    key = idempotency_key or str(uuid.uuid4())
    with connect() as client:
        answer = client.post("/experiments", body, **{"Idempotency-Key": key})
        if dry_run:
            print_json(answer)
            return
        if wait:
            final = watch_experiment(client, answer["id"], quiet=as_json)
            if as_json:
                print_json(final.wire())
            code = final.outcome.code if final.outcome else None
            raise typer.Exit(exit_of_verdict(final.verdict, code))
        if as_json:
            print_json(answer)
        else:
            out.print(f"{answer['id']}  {client.url}/experiments/{answer['id']}")
            out.print(f"[dim]follow it with:[/dim] gonogo watch {answer['id']}")


def list_(
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    as_json: Json = False,
) -> None:
    """List experiments, newest first."""
    with connect() as client:
        page = client.get("/experiments", limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [ExperimentView.model_validate(item) for item in page["items"]]
    print_table(
        ("id", "name", "plan", "state", "phase", "verdict", "created"),
        (
            (
                row.id,
                row.name,
                row.plan,
                row.state,
                next((phase.name for phase in row.phases if phase.state == "active"), ""),
                verdict_text(row.verdict),
                row.created_at,
            )
            for row in rows
        ),
    )


def show(experiment: Id, as_json: Json = False) -> None:
    """Show one experiment: phases, runs, conditions, decisions."""
    with connect() as client:
        view = client.experiment(experiment)
        decisions = list(client.pages(f"/experiments/{view.id}/decisions"))
        if as_json:
            print_json({**view.wire(), "decisions": decisions})
            return
        _print_experiment(view)
        runs = [client.run(run) for phase in view.phases for run in phase.runs]
    print_table(
        ("phase", "run", "attempt", "state", "step", "outcome", "verdict"),
        (
            (
                run.phase,
                run.id,
                str(run.attempt),
                run.state,
                f"{run.step}/{run.steps}",
                run.outcome.code if run.outcome else "–",
                verdict_text(run.verdict),
            )
            for run in runs
        ),
    )
    for decision in decisions:
        out.print(f"\n{decision['id']}  {decision['phase']}  {verdict_text(decision['verdict'])}")
        for row in decision["criteria"]:
            out.print(f"  {row['outcome']:<12} {row['id']:<18} {row['evidence']}", highlight=False)


def _print_experiment(view: ExperimentView) -> None:
    fields = {
        "experiment": view.id,
        "name": view.name,
        "plan": view.plan,
        "state": view.state,
        "verdict": verdict_text(view.verdict),
    }
    if view.outcome is not None:
        fields["outcome"] = view.outcome.code
    if view.waiting_for is not None:
        fields["waiting for"] = view.waiting_for
    if view.forecast.seconds_p50 is not None:
        fields["rest"] = f"{duration(view.forecast.seconds_p50)}  ({view.forecast.basis})"
    print_fields(fields)
    for condition in view.conditions:
        out.print(f"condition {condition.state}: {condition.text}", highlight=False)


def _verb(verb: str, text: str) -> Any:
    def act(experiment: Id, reason: Reason = "", as_json: Json = False) -> None:
        with connect() as client:
            view = client.experiment(experiment)
            answer = client.post(f"/experiments/{view.id}/{verb}", {"reason": reason})
        if as_json:
            print_json(answer)
        else:
            out.print(f"{view.id}: {verb} accepted; state {answer.get('state', view.state)}")

    act.__doc__ = text
    return act


def override(
    experiment: Id,
    verdict: Annotated[Verdict, typer.Argument(help="The verdict that a person takes.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; required.")],
    condition: Annotated[str | None, typer.Option(help="Waive this condition instead.")] = None,
    as_json: Json = False,
) -> None:
    """Decide by hand: take a verdict, or waive a condition."""
    with connect() as client:
        view = client.experiment(experiment)
        response = client.call("GET", f"/experiments/{view.id}")
        etag = response.headers.get("ETag", "*")
        body = {"verdict": verdict.value, "reason": reason, "condition": condition}
        answer = client.post(f"/experiments/{view.id}/decisions", body, **{"If-Match": etag})
    if as_json:
        print_json(answer)
    else:
        out.print(f"{answer['id']}: {verdict_text(answer['verdict'])} by {answer['actor']}")


def report(
    experiment: Id,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write it here.")] = None,
) -> None:
    """Print the Markdown report of an experiment."""
    with connect() as client:
        view = client.experiment(experiment)
        text = client.call("GET", f"/experiments/{view.id}/report").text
    if output is None:
        print(text)
    else:
        output.write_text(text)
        out.print(str(output))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(submit)
    app.command("list")(list_)
    app.command()(show)
    for verb, text in (
        ("halt", "Stop with a checkpoint; evidence kept, a decision awaited."),
        ("cancel", "Stop and finish without a verdict."),
        ("resume", "Go on from the last durable checkpoint."),
        ("promote", "Approve the next phase."),
        ("rerun", "Run the undecided phase again."),
        ("takeover", "Declare a silent attempt dead and start the next (you vouch for it)."),
    ):
        app.command(verb)(_verb(verb, text))
    app.command()(override)
    app.command()(report)
