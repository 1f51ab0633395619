"""How does the list of experiments look? The verdict stays at any width."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from gonogo.cli.output import out, print_table, standing_text
from gonogo.cli.screen.table import Column, print_columns
from gonogo.cli.screen.times import ago, lasted
from gonogo.contract.api import ExperimentView
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import Order


def print_experiments(rows: Sequence[ExperimentView]) -> None:
    """Print experiments as a table, or what to do when there are none."""
    if not rows:
        out.print("no experiment yet; submit one with: gonogo submit demo")
        return
    print_columns(
        [
            Column(name="id", cells=[row.id for row in rows]),
            Column(name="verdict", cells=[_verdict(row) for row in rows]),
            Column(name="name", cells=[escape(row.name) for row in rows], gives_way=1, cut=True),
            Column(name="state", cells=[row.state for row in rows], gives_way=2),
            Column(name="phase", cells=[_phase(row) for row in rows], gives_way=4),
            Column(name="submitted", cells=[ago(row.created_at) for row in rows], gives_way=3),
            Column(name="took", cells=[_took(row) for row in rows], gives_way=5),
            Column(name="by", cells=[escape(row.submitted_by or "–") for row in rows], gives_way=7),
            Column(name="plan", cells=[escape(row.plan) for row in rows], gives_way=6),
            Column(name="why", cells=[_why(row) for row in rows], gives_way=8, cut=True),
        ]
    )


def print_dry_run(answer: Mapping[str, Any]) -> None:
    """Print which runs a submission would order; whole, the orders are JSON."""
    orders = [Order.model_validate(row) for row in answer["orders"]]
    out.print(f"{orders[0].plan}: would run, digest {answer['plan_digest'][:12]}", highlight=False)
    print_table(
        ("phase", "steps", "ranks", "starts", "criteria"),
        (
            (
                order.phase,
                str(order.steps),
                str(order.world_size),
                escape(start_of(order)),
                ", ".join(row.id for row in order.gate),
            )
            for order in orders
        ),
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
        print_table(("phase", "left out", "why"), rows)


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
    """Return the verdict; what has none shows its state instead, or that it was cancelled."""
    if row.verdict:
        return standing_text(row)
    ended = row.state is ExperimentState.FINISHED and row.outcome is not None
    return f"[dim]{row.outcome.code if ended and row.outcome else row.state}[/dim]"


def _phase(row: ExperimentView) -> str:
    return next((escape(phase.name) for phase in row.phases if phase.state == "active"), "")


def _why(row: ExperimentView) -> str:
    return escape(row.cause.text if row.cause else row.waiting_for or "")


def _took(row: ExperimentView) -> str:
    return lasted(row.started_at, row.ended_at)
