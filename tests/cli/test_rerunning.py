"""`gonogo rerun --set` runs a phase again in an experiment of its own."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.cli.plans import sets_of_phases
from gonogo.contract.wire import short_id
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

PLAN: dict[str, Any] = {
    "v": 1,
    "name": "mine",
    "profile": "cpu",
    "workload": {"command": "train --lr {lr} --seed {seed} --steps {steps}"},
    "train": {"lr": 1e-3, "seed": 7},
    "phases": [{"name": "short", "steps": 3}, {"name": "long", "steps": 30, "train": {"lr": 5}}],
}


def test_a_value_is_set_in_the_phase_and_those_after_it() -> None:
    sets = {"train.lr": 1, "env.A": "x", "seed": 3, "steps": 9, "watch.stall.halt_s": 60}
    assert sets_of_phases(sets, ["long", "last"]) == {
        "phases.long.train.lr": 1,
        "phases.last.train.lr": 1,
        "phases.long.env.A": "x",
        "phases.last.env.A": "x",
        "phases.long.train.seed": 3,
        "phases.last.train.seed": 3,
        "phases.long.steps": 9,
        "watch.stall.halt_s": 60,
    }


@pytest.fixture
def ended(plane: Plane, gonogo: Gonogo) -> str:
    """An experiment that was cancelled before any of its runs began."""
    experiment = plane.submit(PLAN, name="mine")
    assert gonogo("cancel", experiment).code == 0
    plane.wait(lambda: plane.experiment(experiment)["state"] == "finished", "the end")
    return experiment


def test_a_command_gets_what_is_set(plane: Plane, gonogo: Gonogo, ended: str) -> None:
    said = gonogo(
        "rerun", ended, "--set", "train.lr=3e-4", "--set", "seed=8", "--set", "steps=4",
        "--reason", "too fast",
    )  # fmt: skip
    assert said.code == 0, said.err
    made = gonogo("show", "last", "--json").json()
    assert short_id(made["id"]) in said.out
    assert f"short of {short_id(ended)} again with train.lr=3e-4 seed=8 steps=4" in said.out
    assert made["origin"]["experiment"] == ended
    assert made["labels"] == {"reason": "too fast"}
    order = plane.next_order(plane.worker(), allow=["train"])
    assert order.experiment == made["id"]
    assert order.command == ["train", "--lr", "0.0003", "--seed", "8", "--steps", "4"]
    assert order.train == {"lr": 3e-4, "seed": 8}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--phase", "long"), "--phase goes with --set"),
        (("--phase", "lng", "--set", "steps=3"), "has no phase 'lng'; did you mean long?"),
        (("--phase", "long", "--set", "steps=3"), "short is skipped"),
        (("--set", "train.lrr=1"), "short.train.lrr: the plan has no train.lrr; did you mean lr?"),
        (("--set", "steps=0"), "phases.short.steps: found 0"),
        (("--set", "workload.command=x {lrr}"), "unknown placeholder {lrr}; did you mean lr?"),
    ],
)
def test_what_cannot_be_is_one_line(
    gonogo: Gonogo, ended: str, words: tuple[str, ...], line: str
) -> None:
    said = gonogo("rerun", ended, *words)
    assert said.code == 2
    assert line in said.err


def test_one_that_goes_on_has_to_end_first(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(PLAN, name="mine")
    said = gonogo("rerun", experiment, "--set", "train.lr=1")
    assert said.code != 0
    assert f"must have ended (gonogo cancel {experiment})" in said.err


def test_a_submission_without_a_plan_names_an_origin(plane: Plane) -> None:
    answer = plane.call("POST", "/experiments", json={"set": {}})
    assert answer.status_code == 422
    assert "expected a plan, or an origin whose plan it is" in answer.text
