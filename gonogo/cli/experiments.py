"""Commands that submit, list and steer experiments."""

import re
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import islice, takewhile
from typing import Annotated, Any

import typer
from rich.markup import escape

from gonogo.cli.client import Client, Id, connect, origin_of
from gonogo.cli.exits import Accept, accepted, exit_of_experiment
from gonogo.cli.output import (
    Json,
    Labels,
    Limit,
    Output,
    ago,
    err,
    lasted,
    out,
    print_json,
    print_lines,
    print_list,
    print_made,
    standing_text,
)
from gonogo.cli.plans import (
    parse_pairs,
    parse_sets,
    phases_again,
    read_plan,
    sets_of_phases,
    submit_plan,
)
from gonogo.cli.watching import following, print_final, watch_experiment
from gonogo.contract.api import ExperimentView
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import Rejected
from gonogo.contract.lifecycle import ExperimentState

_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-]+\.svg)\)")
"""A picture that a report in Markdown names."""
_FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", "": "markdown"}
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, e.g. phases.smoke.steps=20."),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; recorded with the action.")]
Key = Annotated[str | None, typer.Option(help="Repeat safely: the same key submits once.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would run, as JSON.")]


def submit(
    plan: Annotated[str, typer.Argument(help="Bundled plan's name, or a YAML file.")],
    name: Annotated[str | None, typer.Option(help="Name of the experiment.")] = None,
    set_: Sets = None,
    label: Labels = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="EXP:PHASE",
            help="Begin with PHASE where EXP ended; @STEP: after a checkpoint; @0: from its start.",
        ),
    ] = None,
    idempotency_key: Key = None,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option(help="Watch until it ends; exit by verdict.")] = False,
    accept: Accept = None,
    as_json: Json = False,
) -> None:
    """Submit an experiment."""
    argument = read_plan(plan)
    sets = parse_sets(set_ or [])
    with connect() as client:
        answer = submit_plan(
            client,
            "/experiments",
            argument,
            sets,
            key=idempotency_key,
            name=name,
            labels=parse_pairs(label or [], "--label"),
            dry_run=dry_run,
            **({} if from_ is None else {"origin": origin_of(client, from_)}),
        )
        if dry_run:
            print_json(answer)
            return
        address = f"{client.url}/experiments/{answer['id']}"
        if not wait:
            print_made(answer, address, f"gonogo watch {answer['id']}", as_json=as_json)
            return
        print_lines([f"{answer['id']}  {address}"], err)
        with following(answer["id"], f"follow it again with: gonogo watch {answer['id']}"):
            final = watch_experiment(client, answer["id"], quiet=as_json)
    print_json(final.wire()) if as_json else print_final(final)
    raise typer.Exit(accepted(exit_of_experiment(final), accept))


def list_(
    limit: Limit = 20,
    state: Annotated[ExperimentState | None, typer.Option(help="Only in this state.")] = None,
    name: Annotated[str | None, typer.Option(help="Only if the name contains this.")] = None,
    label: Labels = None,
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
        else:
            rows = takewhile(
                lambda row: oldest is None or datetime.fromisoformat(row["created_at"]) >= oldest,
                client.pages("/experiments", state=state),
            )
            fitting = (
                row
                for row in rows
                if (name or "").lower() in row["name"].lower()
                and labels.items() <= row["labels"].items()
                and owner in (None, row["submitted_by"])
            )
            page = {"items": list(islice(fitting, limit)), "next_cursor": None}
    none = "no experiment yet; submit one with: gonogo submit demo"
    print_list(
        page,
        [ExperimentView.model_validate(row) for row in page["items"]],
        {
            "id": "id",
            "verdict": _verdict,
            "name": "name",
            "submitted": lambda row: ago(row.created_at),
            "state": "state",
            "phase": _phase,
            "took": lambda row: lasted(row.started_at, row.ended_at),
            "plan": "plan",
            "by": "submitted_by",
            "why": lambda row: escape(row.cause.text if row.cause else row.waiting_for or ""),
        },
        as_json=as_json,
        empty="no experiment fits" if chosen or state else none,
        cut=("name", "why"),
        optional=("why", "submitted", "state", "phase", "took", "plan", "by"),
    )


def parse_since(text: str, now: datetime) -> datetime:
    """Return the instant of `90m`, `12h` or `7d` ago, or of a date or an RFC 3339 time."""
    if (age := re.fullmatch(r"(\d+)([mhd])", text)) is not None:
        return now - int(age[1]) * timedelta(minutes={"m": 1, "h": 60, "d": 1440}[age[2]])
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise Rejected(f"--since: found {text!r}; expected 90m, 12h, 7d or a date") from error


def _verdict(row: ExperimentView) -> str:
    if row.verdict:
        return standing_text(row)
    ended = row.state is ExperimentState.FINISHED and row.outcome is not None
    return f"[dim]{row.outcome.code if ended and row.outcome else row.state}[/dim]"


def _phase(row: ExperimentView) -> str:
    return next((escape(phase.name) for phase in row.phases if phase.state == "active"), "")


def _etag(client: Client, experiment: str) -> str:
    answer = client.call("GET", f"/experiments/{experiment}")
    return str(answer.headers.get("ETag", "*"))


def _verb(verb: str, text: str) -> Any:
    def act(experiment: Id, reason: Reason = "", as_json: Json = False) -> None:
        with connect() as client:
            view = client.experiment(experiment)
            # who promotes names no phase, and must not approve one that he has not seen
            seen = {"If-Match": _etag(client, view.id)} if verb == "promote" else {}
            path = f"/experiments/{view.id}/{verb}"
            response = client.call("POST", path, body={"reason": reason}, headers=seen)
        answer = response.json()
        word = "accepted" if response.status_code == HTTPStatus.ACCEPTED else "was asked before"
        if verb == "halt" and word == "accepted" and view.state is ExperimentState.STOPPING:
            word = "asked again, it ends at once"
        if as_json:
            print_json(answer)
        else:
            out.print(f"{view.id}: {verb} {word}; state {answer.get('state', view.state)}")

    act.__doc__, act.__name__ = text, verb
    return act


VERBS = tuple(
    _verb(verb, text)
    for verb, text in (
        ("halt", "Stop with a checkpoint, asked again at once; then wait for your decision."),
        ("resume", "Continue the undecided phase from its last checkpoint."),
        ("promote", "Approve what waits for approval, so that the next phase begins."),
        ("takeover", "Declare a silent run dead (you vouch for it) and start its next attempt."),
        ("cancel", "Stop for good, without a verdict; with a checkpoint, asked again at once."),
    )
)


def rerun(
    experiment: Id,
    reason: Reason = "",
    set_: Sets = None,
    phase: Annotated[str | None, typer.Option(help="With --set: begin with this phase.")] = None,
    as_json: Json = False,
) -> None:
    """Run the undecided phase from its start; with --set (train.KEY, seed, steps) in a new one."""
    if not set_:
        if phase is not None:
            raise Rejected("--phase goes with --set; without, the undecided phase is run again")
        _verb("rerun", "")(experiment, reason, as_json)
        return
    sets = parse_sets(set_)
    with connect() as client:
        view = client.experiment(experiment)
        again = phases_again(view, phase)
        answer = submit_plan(
            client,
            "/experiments",
            None,
            sets_of_phases(sets, again),
            key=None,
            name=view.name,
            labels={**view.labels, **({"reason": reason} if reason else {})},
            origin=f"{view.id}:{again[0]}@0",
        )
        address = f"{client.url}/experiments/{answer['id']}"
    print_made(answer, address, f"gonogo watch {answer['id']}", as_json=as_json)
    if not as_json:
        print_lines([f"{again[0]} of {view.id} again with {' '.join(set_)}"])


def override(
    experiment: Id,
    verdict: Annotated[Verdict, typer.Argument(help="The verdict that a person takes.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; required.")],
    condition: Annotated[str | None, typer.Option(help="Waive this condition instead.")] = None,
    as_json: Json = False,
) -> None:
    """Decide by hand: take a verdict, or waive conditions."""
    with connect() as client:
        view = client.experiment(experiment)
        body = {"verdict": verdict.value, "reason": reason, "condition": condition}
        etag = _etag(client, view.id)
        answer = client.post(f"/experiments/{view.id}/decisions", body, **{"If-Match": etag})
        after = client.experiment(view.id)
    if as_json:
        print_json(answer)
        return
    print_lines([f"{answer['id']}: {answer['verdict']} by hand, {answer['actor']}"])
    print_final(after)


def report(experiment: Id, output: Output = None, as_json: Json = False) -> None:
    """Print the report of an experiment; write NAME.html, or NAME.md with pictures beside it."""
    wanted = _FORMATS.get("" if output is None else output.suffix.lower())
    if wanted is None:
        name = "" if output is None else output.name
        raise Rejected(f"--output: found {name!r}; expected a name that ends in .html or .md")
    with connect() as client:
        view = client.experiment(experiment)
        path = f"/experiments/{view.id}/report"
        text = client.call("GET", path, params={"format": wanted}).text
        if output is not None:
            output.write_text(text)
            for name in _PICTURE.findall(text) if wanted == "markdown" else ():
                output.with_name(name).write_bytes(client.call("GET", f"{path}/{name}").content)
    if as_json:
        print_json({"experiment": view.id, "output": output and str(output), "text": text})
    else:
        print(text if output is None else output)
