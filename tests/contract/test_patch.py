"""One patch changes environment, configuration and workload; what it holds is checked by itself."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gonogo.contract.workload import Patch, RecordedPatch, Workload


def test_a_patch_keeps_what_was_said_and_nothing_else() -> None:
    said = {"env": {"NSA_TB_DISABLE": 0}, "workload": {"parallel": "fsdp"}}
    patch = Patch.model_validate(said)
    assert patch.document() == {"env": {"NSA_TB_DISABLE": "0"}, "workload": {"parallel": "fsdp"}}
    assert Patch.model_validate(patch.document()) == patch
    assert Patch().document() == {}


def test_a_patch_tells_itself() -> None:
    patch = Patch(
        env={"A": "1"},
        train={"dtype": "bf16"},
        workload={"parallel": "fsdp"},  # type: ignore[arg-type]
    )
    assert patch.text() == "A=1 dtype=bf16 workload.parallel=fsdp"
    assert Patch().text() == "no change"


ENVIRONMENTS = [
    ({"NSA_DDP_BUCKET_MB": 50}, {"NSA_DDP_BUCKET_MB": "50"}),
    ({"NSA_LR": 1e-4}, {"NSA_LR": "0.0001"}),
    ({"NSA_TB_DISABLE": None}, {"NSA_TB_DISABLE": None}),
    ({"WANDB_PROJECT": "mine"}, {"WANDB_PROJECT": "mine"}),
    ({"NSA_TB_DISABLE": True}, 'such as "1"'),
    ({"NSA_LR": float("nan")}, "finite"),
    ({"A B": "1"}, "no name of a variable"),
    ({"": "1"}, "no name of a variable"),
    ({"LD_PRELOAD": "x.so"}, "decides what code runs"),
    ({"PYTHONPATH": "/x"}, "decides what code runs"),
    ({"GONOGO_RUN": "run_1"}, "decides what code runs"),
    ({"RANK": 0}, "decides what code runs"),
    ({"A": "nul\0"}, "no process can be given"),
    ({"A": "\udcff"}, "no process can be given"),
    ({"A": [1]}, "valid string"),
]


@pytest.mark.parametrize(("env", "found"), ENVIRONMENTS, ids=[str(row[0]) for row in ENVIRONMENTS])
def test_an_environment_holds_names_and_texts_that_a_process_can_be_given(
    env: dict[str, Any], found: Any
) -> None:
    if isinstance(found, dict):
        assert Patch(env=env).env == found
        return
    with pytest.raises(ValidationError, match=found):
        Patch(env=env)


def test_unknown_fields_are_errors_but_in_what_another_release_recorded() -> None:
    said = {"env": {}, "diagnosis": "x", "workload": {"parallel": "ddp"}}
    with pytest.raises(ValidationError, match="diagnosis"):
        Patch.model_validate(said)
    assert RecordedPatch.model_validate(said).workload.parallel == "ddp"


PROGRAMS = [
    ({}, "nsa.train", None),
    ({"entry": "my.trainer"}, "my.trainer", None),
    ({"entry": "src/train.py"}, "src/train.py", None),
    ({"command": "python train.py --name 'a b'"}, None, ["python", "train.py", "--name", "a b"]),
    ({"command": ["python", "-c", "print(1) > 2"]}, None, ["python", "-c", "print(1) > 2"]),
    ({"command": ["x"], "entry": None}, None, ["x"]),
]


@pytest.mark.parametrize(("said", "program", "command"), PROGRAMS)
def test_a_workload_is_an_entry_or_a_command(
    said: dict[str, Any], program: str | None, command: list[str] | None
) -> None:
    workload = Workload.model_validate(said)
    assert (workload.program, workload.command) == (program, command)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"command": "python train.py | tee log"}, "no shell reads this"),
        ({"command": "a && b"}, "no shell reads this"),
        ({"command": "python 'train.py"}, "no closing quotation"),
        ({"command": ""}, "at least 1"),
        ({"command": []}, "at least 1"),
        ({"command": [""]}, "expected a program"),
        ({"entry": "a b"}, "expected a module"),
        ({"entry": "../x"}, "expected a module"),
        ({"cwd": "here"}, "absolute"),
        ({"files": [""]}, "expected a path"),
        ({"env": {"A": None}}, "valid string"),
    ],
)
def test_what_could_not_be_started_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Workload.model_validate(said)
