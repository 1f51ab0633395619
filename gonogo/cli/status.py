"""Commands that only read: `status`, `show`, `workers`, `alerts`, `decisions`, `artifacts`, …"""

import sys
import webbrowser
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape

from gonogo.cli.client import Client, Id, connect, resolve, resolve_run
from gonogo.cli.exits import Exit
from gonogo.cli.judging import (
    cause_lines,
    criteria_lines,
    diagnosis_lines,
    directory_evidence,
    experiment_lines,
)
from gonogo.cli.output import (
    Json,
    Limit,
    ago,
    decided_text,
    duration,
    err,
    lasted,
    local_time,
    out,
    print_fields,
    print_json,
    print_lines,
    print_list,
    print_table,
    size_text,
    standing_text,
    verdict_text,
)
from gonogo.cli.settings import load_settings
from gonogo.cli.watching import Glance, parts_of
from gonogo.contract.api import AlertView, ArtifactsView, ExperimentView, RunView, WorkerView
from gonogo.contract.decision import Cause, Decision, DecisionKind
from gonogo.contract.errors import GonogoError, NotAllowed, NotFound, Rejected
from gonogo.contract.goodput import ExperimentGoodput, least_words
from gonogo.contract.lifecycle import ExperimentState, RunState
from gonogo.contract.wire import Kind
from gonogo.judge.words import sentence

MOST_EXPERIMENTS = 20
"""The most that `status` shows of each state."""
MOST_COMMANDS = 3
_ACTIVE = (ExperimentState.RUNNING, ExperimentState.STOPPING, ExperimentState.QUEUED)


def _pairs(labels: dict[str, str], between: str) -> str:
    return escape(between.join(f"{name}={value}" for name, value in labels.items()))


def show(experiment: Id, as_json: Json = False) -> None:
    """Show one experiment: phases, runs, conditions, decisions."""
    with connect() as client:
        view = client.experiment(experiment)
        decisions = list(client.pages(f"/experiments/{view.id}/decisions"))
        goodput = ExperimentGoodput.model_validate(client.get(f"/experiments/{view.id}/goodput"))
        if as_json:
            print_json({**view.wire(), "decisions": decisions, "goodput": goodput.wire()})
            return
        runs = [client.run(run) for phase in view.phases for run in phase.runs]
        ended = [run for run in runs if run.outcome and run.outcome.code != "completed"]
        going = [run.id for run in runs if run.state is RunState.RUNNING]
        findings = [row for run in going for row in client.pages(f"/runs/{run}/findings")]
        evidence = [
            f"{run.id}: {text}"
            for run in ended
            if run.dir is not None
            for text in directory_evidence(Path(run.dir), client.pages(f"/runs/{run.id}/findings"))
        ]
    fields = _fields(view)
    if goodput.ratio is not None:
        fields["time"] = f"{least_words(goodput)}{goodput.ratio:.1%} effective"
    print_fields(fields)
    print_lines(experiment_lines(view))
    print_lines(f"condition {row.state}: {row.text} ({row.id})" for row in view.conditions)
    _print_runs(runs)
    print_lines(
        f"{run.phase} #{run.attempt} ended as {run.outcome.code}, by {run.outcome.actor}: "
        f"{run.outcome.text}"
        for run in ended
        if run.outcome and run.outcome.text
    )
    print_lines(f"{row['severity']}: {row['detector']}: {row['text']}" for row in findings[-3:])
    print_lines(f"evidence of {text}" for text in evidence)
    for decision in decisions:
        row = Decision.model_validate(decision)
        out.print(f"\n{row.id}  {row.phase}  {decided_text(row)}", highlight=False)
        if row.kind is not DecisionKind.AUTO:
            print_lines([f"  {row.actor}: {row.reason or 'gave no reason'}"])
        _print_reasons(decision, row)


def _fields(view: ExperimentView) -> dict[str, Any]:
    by = f" by {escape(view.submitted_by)}" if view.submitted_by else ""
    place, rest = view.campaign, view.forecast
    fields = {
        "experiment": view.id,
        "name": escape(view.name),
        "plan": view.plan,
        "state": view.state,
        "verdict": standing_text(view),
        "submitted": f"{ago(view.created_at)}{by}",
        "took" if view.ended_at else "runs for": view.started_at
        and lasted(view.started_at, view.ended_at),
        "campaign": place and f"{place.campaign}, run {place.repeat} of {escape(place.variant)}",
        "labels": _pairs(view.labels, ", "),
        "outcome": view.outcome and view.outcome.code,
        "waiting for": escape(view.waiting_for or ""),
        "rest": rest.seconds_p50 is not None
        and f"{duration(rest.seconds_p50)}, nine in ten {duration(rest.seconds_p90)}",
    }
    return {name: value for name, value in fields.items() if value}


def _print_runs(runs: Sequence[RunView]) -> None:
    print_table(
        runs,
        {
            "phase": "phase",
            "run": "id",
            "verdict": lambda run: verdict_text(run.verdict),
            "outcome": lambda run: run.outcome.code if run.outcome else "–",
            "step": lambda run: f"{run.step}/{run.steps}",
            "why": "reason",
            "attempt": "attempt",
            "state": "state",
        },
        cut=("phase",),
        optional=("outcome", "step", "why", "attempt", "state"),
    )


def _print_reasons(document: dict[str, Any], row: Decision) -> None:
    if row.waives:
        print_lines([f"  waived       {', '.join(row.waives)}"])
    if document.get("never_ran"):
        print_lines([f"  never ran    {', '.join(document['never_ran'])}"])
    if document.get("cause"):
        print_lines(f"  {line}" for line in cause_lines(Cause.model_validate(document["cause"])))
    if row.diagnosis is not None:
        print_lines(f"  {line}" for line in diagnosis_lines(row))
    print_lines(criteria_lines(document["criteria"]))


def load_workers(client: Client) -> list[WorkerView]:
    """Return all workers that ever claimed."""
    return [WorkerView.model_validate(row) for row in client.pages("/workers")]


def workers(as_json: Json = False) -> None:
    """List the workers: devices, free ones, runs, when they were last heard of."""
    with connect() as client:
        rows = load_workers(client)
    print_list(
        {"items": [row.wire() for row in rows]},
        rows,
        {
            "worker": "id",
            "state": "state",
            "free": lambda row: f"{len(row.free)} of {len(row.devices)}",
            "runs": lambda row: str(len(row.active)),
            "heard of": lambda row: ago(row.last_seen_at),
            "labels": lambda row: _pairs(row.labels, " "),
            "profiles": lambda row: escape(", ".join(row.profiles)),
            "host": "host",
            "version": "version",
        },
        as_json=as_json,
        empty="no worker has claimed anything yet; start one with: gonogo worker",
        cut=("worker",),
        optional=("heard of", "labels", "profiles", "host", "version"),
    )


def alerts(limit: Limit = 20, as_json: Json = False) -> None:
    """List alerts, newest first, with what became of their delivery."""
    with connect() as client:
        page = client.get("/alerts", limit=limit)
    print_list(
        {"items": page["items"]},
        [AlertView.model_validate(row) for row in page["items"]],
        {
            "at": lambda row: ago(row.at),
            "type": "type",
            "delivery": "state",
            "alert": "text",
            "id": "id",
        },
        as_json=as_json,
        empty="nothing has called for attention",
        cut=("alert",),
        optional=("type", "delivery", "id"),
    )


def decisions(
    which: Annotated[
        str,
        typer.Argument(help="Experiment or one decision: id, beginning, name, or `last`."),
    ] = "last",
    as_json: Json = False,
) -> None:
    """List the decisions of an experiment, or show one with all its criteria."""
    with connect() as client:
        kind, found = resolve(client, which, Kind.EXPERIMENT, Kind.DECISION)
        if kind is Kind.DECISION:
            document = client.get(f"/decisions/{found}")
            print_json(document) if as_json else _print_decision(document)
            return
        documents = list(client.pages(f"/experiments/{found}/decisions"))
    print_list(
        {"items": documents},
        [Decision.model_validate(row) for row in documents],
        {
            "#": "seq",
            "phase": "phase",
            "verdict": decided_text,
            "id": "id",
            "kind": "kind",
            "by": "actor",
            "at": lambda row: ago(row.at),
            "reason": "reason",
        },
        as_json=as_json,
        empty=f"nothing is decided yet of {found}",
        cut=("phase", "reason"),
        optional=("id", "kind", "by", "at", "reason"),
    )


def _print_decision(document: dict[str, Any]) -> None:
    row = Decision.model_validate(document)
    print_fields(
        {
            "decision": row.id,
            "verdict": decided_text(row),
            "experiment": row.experiment,
            "phase": row.phase,
            "run": row.run,
            "by": f"{escape(row.actor)} ({row.kind})",
            "at": local_time(row.at),
            "reason": escape(row.reason) if row.reason else None,
        }
    )
    _print_reasons(document, row)
    print_lines(f"  weakened     {sentence(doubt)}" for doubt in row.weakened)
    out.print(f"[dim]check it with:[/dim] gonogo replay {row.id}")


def artifacts(
    run: Annotated[
        str,
        typer.Argument(help="Run or experiment (its newest run): id, beginning, name, or `last`."),
    ] = "last",
    file: Annotated[str | None, typer.Argument(help="File to print, as the list names it.")] = None,
    as_json: Json = False,
) -> None:
    """List the files of a run, or print one of them."""
    if as_json and file is not None:
        raise Rejected("--json goes with the list")
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            raise NotFound(f"{run} has no run yet")
        if file is not None:
            content = client.call("GET", f"/runs/{found}/artifacts/{quote(file)}").content
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
        view = ArtifactsView.model_validate(client.get(f"/runs/{found}/artifacts"))
    print_list(
        view.wire(),
        view.items,
        {
            "file": "path",
            "size": lambda row: size_text(row.bytes),
            "": lambda row: "cut short" if row.truncated else "",
        },
        as_json=as_json,
        empty="no file of this run can be had here",
        cut=("file",),
        optional=("",),
    )
    if view.dir is not None and not as_json:
        where = "in" if view.reachable else f"the rest lies on {view.host} in"
        print_lines([f"{where} {view.dir}"], err)


def open_(
    experiment: Annotated[
        str | None,
        typer.Argument(help="Experiment (id, beginning, name, `last`); default: all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Open a page in the browser; print its address."""
    settings = load_settings()
    with connect(settings) as client:
        path = ""
        if experiment is not None:
            path = f"experiments/{resolve(client, experiment, Kind.EXPERIMENT)[1]}"
        try:
            link = f"{client.post('/sign-in-links')['url']}&next={quote(f'/{path}')}"
        except NotAllowed:
            link = None
    url = f"{settings.url}/{path}"
    desk = any(settings.inherited.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    opened = desk and not as_json and webbrowser.open(link or url)
    if as_json:
        print_json({"url": url, "sign_in": link, "opened": opened})
        return
    print_lines([url])
    if not opened and link is not None:
        print_lines([f"sign in once with {link}"], err)


def status(as_json: Json = False) -> None:
    """Show whether the service is up, what is active and what waits for you; exit 5: not up."""
    settings = load_settings()
    found: dict[str, Any] = {
        "up": False,
        "ready": False,
        "url": settings.url,
        "source": settings.service.source,
        "problem": None,
        "version": None,
        "home": str(settings.home),
    }
    runs: dict[str, RunView] = {}
    lists: dict[str, list[Any]] = {"workers": [], "going_on": [], "waiting": []}
    try:
        with connect(settings) as client:
            health = client.call("GET", f"{settings.url}/healthz").json()
            found |= {"up": True, "version": health.get("version")}
            client.call("GET", f"{settings.url}/readyz")
            lists = {
                "workers": load_workers(client),
                "going_on": _experiments(client, *_ACTIVE),
                "waiting": _experiments(client, ExperimentState.AWAITING_DECISION),
            }
            for view in lists["going_on"]:
                if ids := [run for phase in view.phases for run in phase.runs]:
                    runs[view.id] = client.run(max(ids))
            found["ready"] = True
    except NotAllowed:
        raise
    except (GonogoError, ValueError) as error:
        found["problem"] = str(error)
    if as_json:
        print_json(found | {name: [row.wire() for row in rows] for name, rows in lists.items()})
    else:
        _print_status(found | lists, runs)
    raise typer.Exit(Exit.OK if found["ready"] else Exit.UNREACHABLE)


def _experiments(client: Client, *states: ExperimentState) -> list[ExperimentView]:
    pages = [
        client.get("/experiments", state=each.value, limit=MOST_EXPERIMENTS) for each in states
    ]
    return [ExperimentView.model_validate(row) for page in pages for row in page["items"]]


def _print_status(found: dict[str, Any], runs: dict[str, RunView]) -> None:
    word = "[bold red]not up[/bold red]"
    if found["up"]:
        word = "[green]up[/green]" if found["ready"] else "[yellow]up, but not ready[/yellow]"
    fields = {"service": f"{word}  {found['url']}", "home": escape(found["home"])}
    if found["problem"] is not None:
        fields["why"] = escape(found["problem"])
    if not found["ready"]:
        print_fields(fields)
        return
    print_fields({**fields, "workers": _workers_text(found["workers"])})
    out.print("\n[bold]active[/bold]" if found["going_on"] else "\nnothing is active")
    for view in found["going_on"]:
        glance = Glance(experiment=view, run=runs.get(view.id), now=datetime.now(UTC))
        progress = " | ".join(parts_of(glance)) or view.state
        print_lines([f"  {view.id}  {view.name}", f"      {progress}"])
    out.print("\n[bold]waits for you[/bold]" if found["waiting"] else "\nnothing waits for you")
    for view in found["waiting"]:
        print_lines([f"  {view.id}  {view.name}", f"      {view.waiting_for or 'a decision'}"])
        print_lines(f"      {row.command}  # {row.text}" for row in view.next[:MOST_COMMANDS])


def _workers_text(rows: list[WorkerView]) -> str:
    living = [row for row in rows if row.state != "silent"]
    if not living:
        return "none is up: start one with `gonogo worker`"
    free = sum(len(row.free) for row in living)
    devices = sum(len(row.devices) for row in living)
    return f"{len(living)} up, {free} of {devices} devices free"
