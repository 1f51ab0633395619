"""Which workers, alerts and decisions are there? `workers`, `alerts`, `decisions`."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from gonogo.cli.client import Client
from gonogo.cli.connection import connect
from gonogo.cli.output import decided_text, out, print_fields, print_json, print_lines
from gonogo.cli.reach.completing import complete_decisions
from gonogo.cli.reach.naming import resolve
from gonogo.cli.screen.table import Column, print_columns
from gonogo.cli.screen.times import ago, local
from gonogo.cli.standing import diagnosis_lines
from gonogo.contract.api import AlertView, WorkerView
from gonogo.contract.decision import Decision
from gonogo.contract.ids import Kind
from gonogo.judge.words import sentence

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_STATE_STYLE = {
    "up": "green",
    "silent": "yellow",
    "draining": "yellow",
    "delivered": "green",
    "pending": "yellow",
    "failed": "red",
}


def styled(state: str) -> str:
    """Return a state in its colour, in rich's markup."""
    style = _STATE_STYLE.get(state, "dim")
    return f"[{style}]{state}[/{style}]"


def load_workers(client: Client) -> list[WorkerView]:
    """Return all workers that ever claimed."""
    return [WorkerView.model_validate(row) for row in client.pages("/workers")]


def workers(as_json: Json = False) -> None:
    """List the workers: devices, free ones, runs, when they were last heard of."""
    with connect() as client:
        rows = load_workers(client)
    if as_json:
        print_json({"items": [row.wire() for row in rows]})
    elif not rows:
        out.print("no worker has claimed anything yet; start one with: gonogo worker")
    else:
        print_workers(rows)


def print_workers(rows: list[WorkerView]) -> None:
    """Print workers as a table."""
    print_columns(
        [
            Column(name="worker", cells=[escape(row.id) for row in rows], cut=True),
            Column(name="state", cells=[styled(row.state) for row in rows]),
            Column(name="free", cells=[f"{len(row.free)} of {len(row.devices)}" for row in rows]),
            Column(name="runs", cells=[str(len(row.active)) for row in rows]),
            Column(name="heard of", cells=[ago(row.last_seen_at) for row in rows], gives_way=1),
            Column(
                name="labels",
                cells=[
                    escape(" ".join(f"{name}={value}" for name, value in row.labels.items()))
                    for row in rows
                ],
                gives_way=2,
            ),
            Column(
                name="profiles",
                cells=[escape(", ".join(row.profiles)) for row in rows],
                gives_way=3,
            ),
            Column(name="host", cells=[escape(row.host) for row in rows], gives_way=4),
            Column(name="version", cells=[escape(row.version) for row in rows], gives_way=5),
        ]
    )


def alerts(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    as_json: Json = False,
) -> None:
    """List alerts, newest first, with what became of their delivery."""
    with connect() as client:
        page = client.get("/alerts", limit=limit)
    rows = [AlertView.model_validate(row) for row in page["items"]]
    if as_json:
        print_json({"items": [row.wire() for row in rows]})
    elif not rows:
        out.print("nothing has called for attention")
    else:
        print_columns(
            [
                Column(name="at", cells=[ago(row.at) for row in rows]),
                Column(name="type", cells=[row.type for row in rows], gives_way=1),
                Column(name="delivery", cells=[styled(row.state) for row in rows], gives_way=2),
                Column(name="alert", cells=[escape(row.text) for row in rows], cut=True, cut_to=30),
                Column(name="id", cells=[row.id for row in rows], gives_way=3),
            ]
        )


def decisions(
    which: Annotated[
        str,
        typer.Argument(
            help="Experiment (all its decisions) or one decision: id, beginning, name, or `last`.",
            autocompletion=complete_decisions,
        ),
    ] = "last",
    as_json: Json = False,
) -> None:
    """List the decisions of an experiment, or show one with all its criteria."""
    with connect() as client:
        kind, found = resolve(client, which, Kind.EXPERIMENT, Kind.DECISION)
        if kind is Kind.DECISION:
            document = client.get_patiently(f"/decisions/{found}")
            documents = [document]
        else:
            documents = list(client.pages(f"/experiments/{found}/decisions"))
    if as_json:
        print_json(documents[0] if kind is Kind.DECISION else {"items": documents})
    elif kind is Kind.DECISION:
        _print_decision(documents[0])
    elif not documents:
        out.print(f"nothing is decided yet of {found}")
    else:
        _print_decisions([Decision.model_validate(row) for row in documents])


def _print_decisions(rows: list[Decision]) -> None:
    print_columns(
        [
            Column(name="#", cells=[str(row.seq) for row in rows]),
            Column(name="phase", cells=[escape(row.phase or "–") for row in rows], cut=True),
            Column(name="verdict", cells=[decided_text(row) for row in rows]),
            Column(name="kind", cells=[row.kind for row in rows], gives_way=2),
            Column(name="by", cells=[escape(row.actor) for row in rows], gives_way=3),
            Column(name="at", cells=[ago(row.at) for row in rows], gives_way=4),
            Column(name="id", cells=[row.id for row in rows], gives_way=1),
            Column(
                name="reason",
                cells=[escape(row.reason or "") for row in rows],
                gives_way=5,
                cut=True,
            ),
        ]
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
            "at": local(row.at),
            "reason": escape(row.reason) if row.reason else None,
        }
    )
    if row.waives:
        print_lines([f"  waived       {', '.join(row.waives)}"])
    if row.diagnosis is not None:
        print_lines(f"  {line}" for line in diagnosis_lines(row))
    for result in row.criteria:
        line = f"  {result.outcome:<12} {result.id:<18} {result.evidence}"
        out.print(line, highlight=False, markup=False)
    for doubt in row.weakened:
        out.print(f"  weakened     {sentence(doubt)}", highlight=False, markup=False)
    out.print(f"[dim]check it with:[/dim] gonogo replay {row.id}")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(workers)
    app.command()(alerts)
    app.command()(decisions)
