"""Commands that submit, list, show and steer experiments."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gonogo.cli.client import DRAWN_S, Client, connect
from gonogo.cli.completing import complete_experiments, complete_plans
from gonogo.cli.describing import (
    cause_lines,
    criteria_lines,
    diagnosis_lines,
    experiment_lines,
    goodput_line,
    run_evidence,
)
from gonogo.cli.exits import Accept, accepted, exit_of_experiment
from gonogo.cli.naming import origin_of
from gonogo.cli.output import (
    Json,
    ago,
    decided_text,
    duration,
    err,
    harmless,
    lasted,
    out,
    print_fields,
    print_json,
    print_lines,
    print_made,
    print_table,
    standing_text,
    verdict_text,
)
from gonogo.cli.plan_arguments import (
    parse_pairs,
    parse_sets,
    phases_again,
    read_plan,
    sets_of_phases,
    submit_plan,
)
from gonogo.cli.watching import following, print_final, watch_experiment
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.decision import Cause, Decision, DecisionKind, Verdict
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Finding
from gonogo.contract.goodput import ExperimentGoodput
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.order import Order

MOST_FINDINGS = 3
"""The newest findings of a running run."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNIT = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-]+\.svg)\)")
"""A picture that a report in Markdown names."""
_FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", "": "markdown"}

Id = Annotated[
    str,
    typer.Argument(
        help="Experiment: id, beginning of it, name, or `last`.",
        autocompletion=complete_experiments,
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; recorded with the action.")]


def submit(
    plan: Annotated[
        str,
        typer.Argument(help="Bundled plan's name, or a YAML file.", autocompletion=complete_plans),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the experiment.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override, e.g. phases.smoke.steps=20.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label k=v.")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="EXP:PHASE",
            help="Go on with PHASE where experiment EXP ended; @STEP: after that checkpoint, "
            "@0: from its start.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat safely: the same key submits once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show what would run.")] = False,
    wait: Annotated[bool, typer.Option(help="Watch until it ends; exit by verdict.")] = False,
    accept: Accept = None,
    as_json: Json = False,
) -> None:
    """Submit an experiment."""
    argument = read_plan(plan)
    sets = parse_sets(set_ or [])
    with connect() as client:
        origin = {} if from_ is None else {"origin": origin_of(client, from_)}
        answer = submit_plan(
            client,
            "/experiments",
            argument,
            sets,
            key=idempotency_key,
            name=name,
            labels=parse_pairs(label or [], "--label"),
            dry_run=dry_run,
            **origin,
        )
        if dry_run:
            print_json(answer) if as_json else print_dry_run(answer)
            return
        if wait:
            print_made(answer["id"], f"{client.url}/experiments/{answer['id']}", to=err)
            again = f"follow it again with: gonogo watch {answer['id']}"
            with following(answer["id"], again):
                final = watch_experiment(client, answer["id"], quiet=as_json)
            if as_json:
                print_json(final.wire())
            else:
                print_final(final)
            raise typer.Exit(accepted(exit_of_experiment(final), accept))
        if as_json:
            print_json(answer)
        else:
            print_made(answer["id"], f"{client.url}/experiments/{answer['id']}")
            out.print(f"[dim]follow it with:[/dim] gonogo watch {answer['id']}", soft_wrap=True)


def list_(
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    state: Annotated[ExperimentState | None, typer.Option(help="Only in this state.")] = None,
    name: Annotated[str | None, typer.Option(help="Only if the name contains this.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Only with this label; repeatable.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only submitted by this user or key.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only submitted since: an age (90m, 12h, 7d) or a date.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List experiments, newest first, with the reason of each verdict."""
    labels = parse_pairs(label or [], "--label")
    oldest = None if since is None else parse_since(since, datetime.now(UTC))
    chosen = bool(name or labels or owner or since)
    with connect() as client:
        if not chosen:
            page = client.get("/experiments", state=state, limit=limit)
            rows = [ExperimentView.model_validate(row) for row in page["items"]]
        else:
            views = map(ExperimentView.model_validate, client.pages("/experiments", state=state))
            fitting = _fitting(views, name, labels, owner, oldest)
            rows = list(islice(fitting, limit))
            page = {"items": [row.wire() for row in rows], "next_cursor": None}
    if as_json:
        print_json(page)
    elif rows:
        print_experiments(rows)
    elif chosen or state is not None:
        out.print("no experiment fits")
    else:
        out.print("no experiment yet; submit one with: gonogo submit demo")


def _fitting(
    views: Iterable[ExperimentView],
    name: str | None,
    labels: Mapping[str, str],
    owner: str | None,
    oldest: datetime | None,
) -> Iterable[ExperimentView]:
    """Yield the experiments that fit every filter; `views` are newest first."""
    for view in views:
        if oldest is not None and datetime.fromisoformat(view.created_at) < oldest:
            return
        named = name is None or name.lower() in view.name.lower()
        owned = owner is None or owner == view.submitted_by
        if named and owned and labels.items() <= view.labels.items():
            yield view


def parse_since(text: str, now: datetime) -> datetime:
    """Return the instant of `90m`, `12h`, `7d`, `2w` ago, or of a date or an RFC 3339 time.

    Raises:
        Rejected: none of these.
    """
    if (age := _AGE.fullmatch(text)) is not None:
        return now - timedelta(**{_UNIT[age[2]]: float(age[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise Rejected(f"--since: found {text!r}; expected 90m, 12h, 7d or a date") from error


def print_experiments(rows: Sequence[ExperimentView]) -> None:
    """Print experiments as a table; verdict and reason stay at 80 columns."""
    print_table(
        {
            "id": [row.id for row in rows],
            "verdict": [_verdict(row) for row in rows],
            "name": [escape(row.name) for row in rows],
            "submitted": [ago(row.created_at) for row in rows],
            "state": [row.state for row in rows],
            "phase": [_phase(row) for row in rows],
            "took": [lasted(row.started_at, row.ended_at) for row in rows],
            "plan": [escape(row.plan) for row in rows],
            "by": [escape(row.submitted_by or "–") for row in rows],
            "why": [_why(row) for row in rows],
        },
        cut=("name", "why"),
        optional=("why", "submitted", "state", "phase", "took", "plan", "by"),
    )


def show(experiment: Id, as_json: Json = False) -> None:
    """Show one experiment: phases, runs, conditions, decisions."""
    with connect() as client:
        view = client.experiment(experiment)
        decisions = list(client.pages(f"/experiments/{view.id}/decisions"))
        goodput = ExperimentGoodput.model_validate(client.get(f"/experiments/{view.id}/goodput"))
        if as_json:
            print_json({**view.wire(), "decisions": decisions, "goodput": goodput.wire()})
            return
        _print_experiment(view)
        print_fields({"time": goodput_line(goodput)})
        runs = [client.run(run) for phase in view.phases for run in phase.runs]
        ended = [run for run in runs if run.outcome and run.outcome.code != "completed"]
        evidence = {run.id: run_evidence(client, run.id) for run in ended}
        findings = [
            Finding.model_validate(row)
            for run in runs
            if run.state is RunState.RUNNING
            for row in client.pages(f"/runs/{run.id}/findings")
        ]
    _print_runs(runs)
    print_lines(
        f"{run.phase} #{run.attempt} ended as {run.outcome.code}, by {run.outcome.actor}: "
        f"{run.outcome.text}"
        for run in ended
        if run.outcome and run.outcome.text
    )
    print_lines(
        f"{row.severity} {ago(datetime.fromtimestamp(row.at, UTC).isoformat())}: "
        f"{row.detector}: {row.text}"
        for row in findings[-MOST_FINDINGS:]
    )
    for run_id, texts in evidence.items():
        for number, text in enumerate(texts):
            head = "" if number else f"\nevidence of {run_id}\n"
            out.print(f"{head}  {text}", highlight=False, markup=False)
    for decision in decisions:
        _print_decision(decision)


def _print_runs(runs: Sequence[RunView]) -> None:
    print_table(
        {
            "phase": [escape(run.phase) for run in runs],
            "run": [run.id for run in runs],
            "verdict": [verdict_text(run.verdict) for run in runs],
            "outcome": [run.outcome.code if run.outcome else "–" for run in runs],
            "step": [f"{run.step}/{run.steps}" for run in runs],
            "why": [run.reason for run in runs],
            "attempt": [str(run.attempt) for run in runs],
            "state": [run.state for run in runs],
        },
        cut=("phase",),
        optional=("outcome", "step", "why", "attempt", "state"),
    )


def _print_decision(decision: dict[str, Any]) -> None:
    row = Decision.model_validate(decision)
    verdict = decided_text(row)
    out.print(f"\n{decision['id']}  {decision['phase']}  {verdict}", highlight=False)
    if decision["kind"] != DecisionKind.AUTO:
        print_lines([f"  {decision['actor']}: {decision['reason'] or 'gave no reason'}"])
    if row.waives:
        print_lines([f"  waived: {', '.join(row.waives)}"])
    if decision.get("never_ran"):
        print_lines([f"  never ran: {', '.join(decision['never_ran'])}"])
    if decision.get("cause"):
        cause = Cause.model_validate(decision["cause"])
        print_lines(f"  {line}" for line in cause_lines(cause))
    if row.diagnosis is not None:
        print_lines(f"  {line}" for line in diagnosis_lines(row))
    print_lines(criteria_lines(decision["criteria"]))


def _print_experiment(view: ExperimentView) -> None:
    fields = {
        "experiment": view.id,
        "name": escape(view.name),
        "plan": view.plan,
        "state": view.state,
        "verdict": standing_text(view),
    }
    fields |= submission_fields(view)
    if view.outcome is not None:
        fields["outcome"] = view.outcome.code
    if view.waiting_for is not None:
        fields["waiting for"] = escape(view.waiting_for)
    if view.forecast.seconds_p50 is not None:
        rest = f"{duration(view.forecast.seconds_p50)}, nine in ten"
        rest += f" {duration(view.forecast.seconds_p90)}"
        fields["rest"] = f"{rest}  ({view.forecast.basis})"
    if view.forecast.next_checkpoint_s is not None:
        fields["checkpoint"] = f"in {duration(view.forecast.next_checkpoint_s)}"
    if view.forecast.late:
        fields["deadline"] = "cannot be met at this pace"
    print_fields(fields)
    print_lines(experiment_lines(view))
    print_lines(
        f"condition {condition.state}: {condition.text} ({condition.id})"
        for condition in view.conditions
    )


_AS_SEEN = ("promote",)
"""Verbs that name no phase, and would approve the next one after another person's word."""


def _etag(client: Client, experiment: str) -> str:
    """Return the version of an experiment on which a person's word acts."""
    answer = client.call("GET", f"/experiments/{experiment}")
    return str(answer.headers.get("ETag", "*"))


def _verb(verb: str, text: str) -> Any:
    def act(experiment: Id, reason: Reason = "", as_json: Json = False) -> None:
        with connect() as client:
            view = client.experiment(experiment)
            path = f"/experiments/{view.id}/{verb}"
            seen = {"If-Match": _etag(client, view.id)} if verb in _AS_SEEN else {}
            response = client.call("POST", path, body={"reason": reason}, headers=seen)
        answer = response.json()
        if as_json:
            print_json(answer)
            return
        word = "accepted" if response.status_code == HTTPStatus.ACCEPTED else "was asked before"
        if verb == "halt" and word == "accepted" and view.state is ExperimentState.STOPPING:
            word = "asked again, it ends at once"
        out.print(f"{view.id}: {verb} {word}; state {answer.get('state', view.state)}")

    act.__doc__ = text
    return act


def rerun(
    experiment: Id,
    reason: Reason = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Run it in a new experiment with another train.KEY, env.NAME, seed or steps.",
        ),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(help="With --set: this phase; default: the first that has not passed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the undecided phase again, from its start; with --set in a new experiment."""
    if not set_:
        if phase is not None:
            raise Rejected("--phase goes with --set; without, the undecided phase is run again")
        _verb("rerun", "")(experiment, reason, as_json)
        return
    said = parse_sets(set_)
    with connect() as client:
        view = client.experiment(experiment)
        again = phases_again(view, phase)
        sets = sets_of_phases(said, again)
        answer = submit_plan(
            client,
            "/experiments",
            None,
            sets,
            key=None,
            name=view.name,
            labels={**view.labels, **({"reason": reason} if reason else {})},
            origin=f"{view.id}:{again[0]}@0",
        )
        if as_json:
            print_json(answer)
            return
        print_made(answer["id"], f"{client.url}/experiments/{answer['id']}")
        out.print(
            f"[dim]{escape(again[0])} of {view.id} again with {escape(' '.join(set_))};"
            f" follow it with:[/dim] gonogo watch {answer['id']}",
            soft_wrap=True,
            highlight=False,
        )


def override(
    experiment: Id,
    verdict: Annotated[Verdict, typer.Argument(help="The verdict that a person takes.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; required.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="Waive this condition instead; may be repeated: each is a decision of its own."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout: the last decision.")
    ] = False,
) -> None:
    """Decide by hand: take a verdict, or waive conditions."""
    with connect() as client:
        view = client.experiment(experiment)
        answers = []
        for name in dict.fromkeys(condition) if condition else [None]:
            etag = _etag(client, view.id)
            body = {"verdict": verdict.value, "reason": reason, "condition": name}
            answer = client.post(f"/experiments/{view.id}/decisions", body, **{"If-Match": etag})
            answers.append(answer)
        after = client.experiment(view.id)
    if as_json:
        print_json(answers[-1])
        return
    print_lines([f"{row['id']}: {row['verdict']} by hand, {row['actor']}" for row in answers])
    print_final(after)


def report(
    experiment: Id,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write it here: NAME.html is one file, NAME.md has its pictures beside it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the report of an experiment as Markdown, or write it as one HTML file."""
    wanted = "markdown" if output is None else _format_of(output)
    with connect(DRAWN_S) as client:
        view = client.experiment(experiment)
        path = f"/experiments/{view.id}/report"
        text = client.call("GET", path, params={"format": wanted}).text
        if output is not None:
            try:
                output.write_text(text)
                for name in _PICTURE.findall(text) if wanted == "markdown" else ():
                    output.with_name(name).write_bytes(client.call("GET", f"{path}/{name}").content)
            except OSError as error:
                raise Rejected(f"--output: {error.filename}: {error.strerror}") from error
    if as_json:
        print_json({"experiment": view.id, "output": output and str(output), "text": text})
    elif output is None:
        print(harmless(text))
    else:
        out.print(str(output))


def _format_of(output: Path) -> str:
    """Return the format that a file's name asks for.

    Raises:
        Rejected: it asks for none that a report has.
    """
    if (wanted := _FORMATS.get(output.suffix.lower())) is None:
        raise Rejected(
            f"--output: found {output.name!r}; expected a name that ends in .html or .md"
        )
    return wanted


def print_dry_run(answer: Mapping[str, Any]) -> None:
    """Print which runs a submission would order; whole, the orders are JSON."""
    orders = [Order.model_validate(row) for row in answer["orders"]]
    out.print(f"{orders[0].plan}: would run, digest {answer['plan_digest'][:12]}", highlight=False)
    print_table(
        {
            "phase": [order.phase for order in orders],
            "steps": [str(order.steps) for order in orders],
            "ranks": [str(order.world_size) for order in orders],
            "starts": [escape(start_of(order)) for order in orders],
            "criteria": [", ".join(row.id for row in order.gate) for order in orders],
        },
        cut=("starts", "criteria"),
    )
    print_left_out(orders)
    out.print("[dim]every order as it would be given:[/dim] --json", highlight=False)


def start_of(order: Order) -> str:
    """Return what an order starts, as one would type it."""
    return order.entry or shlex.join(order.command or [])


def print_left_out(orders: Sequence[Order]) -> None:
    """Print what the profile leaves out of each phase's gate, and why; of whole gates nothing."""
    rows = [
        (order.phase, ", ".join(row.id for row in order.left_out if row.why == why), escape(why))
        for order in orders
        for why in dict.fromkeys(row.why for row in order.left_out)
    ]
    if rows:
        out.print(f"\nprofile {orders[0].profile} leaves out of the gates:", highlight=False)
        phases, names, whys = zip(*rows, strict=True)
        print_table({"phase": phases, "left out": names, "why": whys}, cut=("left out", "why"))


def submission_fields(view: ExperimentView) -> dict[str, str]:
    """Return who submitted an experiment and when, its labels, and how long it took."""
    by = f" by {escape(view.submitted_by)}" if view.submitted_by else ""
    fields = {"submitted": f"{ago(view.created_at)}{by}"}
    if view.started_at is not None:
        words = "took" if view.ended_at else "runs for"
        fields[words] = lasted(view.started_at, view.ended_at)
    if view.campaign is not None:
        place = view.campaign
        fields["campaign"] = f"{place.campaign}, run {place.repeat} of {escape(place.variant)}"
    if view.labels:
        labels = ", ".join(f"{name}={value}" for name, value in view.labels.items())
        fields["labels"] = escape(labels)
    return fields


def _verdict(row: ExperimentView) -> str:
    """Return the verdict; without one the state, or the outcome."""
    if row.verdict:
        return standing_text(row)
    ended = row.state is ExperimentState.FINISHED and row.outcome is not None
    return f"[dim]{row.outcome.code if ended and row.outcome else row.state}[/dim]"


def _phase(row: ExperimentView) -> str:
    return next((escape(phase.name) for phase in row.phases if phase.state == "active"), "")


def _why(row: ExperimentView) -> str:
    return escape(row.cause.text if row.cause else row.waiting_for or "")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(submit)
    app.command("list")(list_)
    app.command()(show)
    for verb, text in (
        (
            "halt",
            "Stop with a checkpoint, asked again at once; then wait for your decision.",
        ),
        ("cancel", "Stop for good, without a verdict; with a checkpoint, asked again at once."),
        ("resume", "Continue the undecided phase from its last checkpoint."),
        ("promote", "Approve what waits for approval, so that the next phase begins."),
        ("takeover", "Declare a silent run dead (you vouch for it) and start its next attempt."),
    ):
        app.command(verb)(_verb(verb, text))
    app.command()(rerun)
    app.command()(override)
    app.command()(report)
