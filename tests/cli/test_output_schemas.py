"""What commands print with `--json` is what their published schema says, and nothing beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

from gonogo.cli.app import app, run
from gonogo.cli.client import Client
from gonogo.cli.demo import build_result
from gonogo.contract.output import OUTPUTS
from gonogo.contract.schemas import schema
from lab.command import app as simulator
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane
from tests.service.fake_worker import beats

CLI = schema("cli")
ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "runs"
UNTOLD: set[str] = set()
"""Commands without an object of their own here."""
PRINTS_NO_JSON = {"serve", "worker"}


def fits(command: str, document: Any) -> None:
    """Check a document against the command's schema; each of its names must be declared."""
    found = {"$ref": CLI["properties"][command]["$ref"], "$defs": CLI["$defs"]}
    jsonschema.Draft202012Validator(found).validate(document)
    declared = CLI["$defs"][found["$ref"].rsplit("/", 1)[1]]["properties"]
    assert set(document) <= set(declared), set(document) - set(declared)


def test_every_command_that_has_json_has_a_schema() -> None:
    commands = dict(every_command(typer.main.get_command(app)))
    commands["simulate"] = typer.main.get_command(simulator)
    speaking = {
        name
        for name, command in commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(commands) - speaking == PRINTS_NO_JSON
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert "Every command but `serve` and `worker`" in page
    described = {name for name in speaking if any(row.startswith(name) for row in OUTPUTS)}
    assert speaking - UNTOLD == described
    firsts = {name.split()[0] for name in speaking}
    assert {command.split()[0] for command in OUTPUTS} == firsts


def every_command(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("plans", ["plans"]),
        ("plans PLAN", ["plans", "demo"]),
        ("judge", ["judge", str(RUNS / "healthy")]),
        ("judge", ["judge", str(RUNS / "stalled")]),
        ("compare", ["compare", str(RUNS / "healthy"), str(RUNS / "stalled")]),
        ("forecast", ["forecast", "--steps", "10", "--tok-s", "1"]),
        ("status", ["status"]),
        ("doctor", ["doctor"]),
        ("flags", ["flags"]),
        ("keys", ["keys"]),
        ("db", ["db"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_service(command: str, arguments: list[str], gonogo: Gonogo) -> None:
    fits(command, gonogo(*arguments, "--json").json())


def test_of_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    little = ("--hours", "0.1", "--step-s", "60", "--ranks", "1", "--healthy-only", "--json")
    assert run(little, commands=simulator) == 0
    fits("simulate", json.loads(capsys.readouterr().out))


def test_with_a_service(plane: Plane, gonogo: Gonogo) -> None:
    fits("submit", gonogo("submit", "demo", "--name", "mine", "--json").json())
    fits("submit --dry-run", gonogo("submit", "demo", "--dry-run", "--json").json())
    shown = gonogo("submit", "demo", "--dry-run", "--set", "phases.smoke.steps=33").out
    assert re.search(r"smoke +33 +2 +nsa\.train ", shown), "people get a table"
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    fits("status", gonogo("status", "--json").json())
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines)
    (decision, *_) = plane.wait(
        lambda: plane.get(f"/experiments/{order.experiment}/decisions")["items"], "a decision"
    )
    plane.wait(lambda: plane.get("/alerts")["items"], "an alert")
    for command, arguments in (
        ("list", ["list"]),
        ("show", ["show", "mine"]),
        ("workers", ["workers"]),
        ("alerts", ["alerts"]),
        ("decisions", ["decisions", "mine"]),
        ("decisions DECISION", ["decisions", decision["id"]]),
        ("artifacts", ["artifacts", order.run]),
        ("logs", ["logs", order.run]),
        ("forecast", ["forecast", "mine"]),
        ("report", ["report", "mine"]),
        ("open", ["open", "mine"]),
        ("replay", ["replay", decision["id"], "--facts-only"]),
        ("verify", ["verify"]),
        ("halt", ["halt", "mine"]),
    ):
        fits(command, gonogo(*arguments, "--json").json())
    plane.wait_state(order.experiment, "awaiting_decision", "stopping")
    fits("cancel", gonogo("cancel", "mine", "--json").json())
    plane.wait_state(order.experiment, "finished")
    watched = gonogo("watch", "mine", "--json")
    for line in watched.out.splitlines():
        fits("watch", json.loads(line))
    with Client(plane.context.url, plane.key()) as client:
        result = build_result(client, client.experiment(order.experiment), plane.home)
    fits("demo", result)
    said = gonogo("override", "mine", "NO_GO", "--reason", "seen", "--json")
    fits("override", said.json())
    assert gonogo("watch", "mine", "--json").code == 14


def test_the_schema_is_served(plane: Plane) -> None:
    assert plane.get("/schemas/cli") == CLI


def test_stdout_holds_the_object_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gonogo.cli.main", "plans", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
