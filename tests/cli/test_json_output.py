"""What commands print with `--json` is what the page of the command line says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gonogo.cli.app import app, run
from gonogo.cli.client import Client
from gonogo.cli.processes import build_result
from gonogo.contract import api
from gonogo.contract.campaign import Comparison
from gonogo.contract.decision import Decision
from lab.command import app as simulator
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane
from tests.service.fake_worker import beats

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "runs"
PRINTS_NO_JSON = {"serve", "worker"}
MODELS = {**vars(api), "Comparison": Comparison, "Decision": Decision}


def documented() -> dict[str, tuple[Any, set[str]]]:
    """Return command → the model and the further fields that the page names."""
    page = (ROOT / "docs/reference/cli.md").read_text().split("\n## JSON\n")[1]
    found = {}
    for commands, printed in re.findall(r"^\|(`.+)\|(.+)\|$", page, re.M):
        names = {name for words in re.findall(r"`([^`]+)`", printed) for name in words.split()}
        names.discard("--follow")
        model = next((MODELS[name] for name in names if name[0].isupper()), None)
        fields = {name for name in names if name[0].islower()}
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", commands), (model, fields))
    return found


PRINTED = documented()


def fits(command: str, document: Any) -> None:
    """Check a document against the page; each of its names must be listed there."""
    model, fields = PRINTED[command]
    if model is not None:
        model.model_validate(document)
        fields = fields | set(model.model_fields)
    assert set(document) <= fields, set(document) - fields


def test_every_command_that_has_json_is_described() -> None:
    commands = dict(every_command(typer.main.get_command(app)))
    commands["simulate"] = typer.main.get_command(simulator)
    speaking = {
        name
        for name, command in commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(commands) - speaking == PRINTS_NO_JSON
    described = {name for name in speaking if any(row.startswith(name) for row in PRINTED)}
    assert speaking == described
    firsts = {name.split()[0] for name in speaking}
    assert {command.split()[0] for command in PRINTED} == firsts


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


def test_stdout_holds_the_object_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gonogo.cli.main", "plans", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
