"""`gonogo logs` prints a log, or says which one there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

COMMAND = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": ["train"]},
    "phases": [{"name": "try", "steps": 10}],
}


@pytest.fixture
def run(plane: Plane) -> str:
    """A run of which rank 0 alone has printed, as of a program that no torchrun starts."""
    plane.submit(name="mine")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    log = {"name": "rank0.log", "start": 0, "end": 6, "text": "hello\n"}
    assert worker.telemetry(order, logs=[log]).is_success
    return str(order.run)


@pytest.mark.parametrize("rank", [(), ("--rank", "7")], ids=["of the launcher", "of no rank"])
def test_an_empty_log_is_said(run: str, gonogo: Gonogo, rank: tuple[str, ...]) -> None:
    said = gonogo("logs", run, *rank)
    assert (said.code, said.out) == (0, "")
    assert said.err.endswith("nothing of it has come\n")


def test_the_log_of_a_command_is_its_own(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(COMMAND)
    worker = plane.worker()
    order = plane.next_order(worker, allow=["train"])
    worker.start(order)
    assert gonogo("logs", experiment).err == "rank0.log: nothing of it has come\n"
    logs = [
        {"name": name, "start": 0, "end": len(text), "text": text}
        for name, text in (("rank0.log", "step 1\nstep 2\n"), ("torchrun.log", "launched\n"))
    ]
    assert worker.telemetry(order, logs=logs).is_success
    for named in (experiment, order.run, "last"):
        assert gonogo("logs", named, "--tail", "1").out == "step 2\n"
    assert gonogo("logs", "last", "--json").json()["name"] == "rank0.log"


@pytest.mark.parametrize(
    ("order", "options", "shown"),
    [
        ({"command": ["train"]}, (), "a\nb\n"),
        ({"command": ["train"]}, ("--tail", "1"), "b\n"),
        ({"command": ["train"]}, ("--follow",), "a\nb\n"),
        ({"entry": "my.trainer"}, (), "launched\n"),
        ({"entry": "my.trainer"}, ("--rank", "0"), "a\nb\n"),
        ({"entry": "my.trainer"}, ("--rank", "1"), ""),
    ],
)
def test_a_run_directory_shows_its_log_without_a_service(
    tmp_path: Path, gonogo: Gonogo, order: dict[str, object], options: tuple[str, ...], shown: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "order.json").write_text(json.dumps({"run": "run_1", **order}))
    (folder / "rank0.log").write_text("a\nb\n")
    (folder / "torchrun.log").write_text("launched\n")
    (folder / "exit.json").write_text("{}")
    assert gonogo("logs", str(folder), *options).out == shown
    page = gonogo("logs", str(folder), "--tail", "1", "--json").json()
    assert page["run"] == "run_1"
    assert page["next_offset"] == len((folder / page["name"]).read_text())
