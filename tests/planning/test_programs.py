"""What a plan asks of a host, and which hosts take it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from gonogo.contract.plan import Plan
from gonogo.contract.workload import EngineName
from gonogo.planning.programs import allows, lacks, needs, programs, spans
from gonogo.planning.source import bundled_plan, parse_plan, with_overrides
from tests.planning.test_checks import FOREIGN


def foreign(**changes: Any) -> Plan:
    return parse_plan({**deepcopy(FOREIGN), **changes})


def command(words: list[str] | str, **more: Any) -> Plan:
    return foreign(workload={"command": words, **more})


@pytest.mark.parametrize(
    ("plan", "allow", "allow_env", "taken"),
    [
        (parse_plan(bundled_plan("demo")), [], [], True),
        (command("python train.py"), [], [], False),
        (command("python train.py"), ["python"], [], True),
        (command("python train.py"), ["any"], [], True),
        (command("./train.sh", cwd="/src"), ["/src/train.sh"], [], True),
        (command("./train.sh", cwd="/other"), ["/src/train.sh"], [], False),
        (foreign(workload={"entry": "my.trainer"}), ["my.trainer"], [], True),
        (command("x", env={"NCCL_DEBUG": "INFO"}), ["x"], [], True),
        (command("x", env={"WANDB_MODE": "offline"}), ["x"], [], False),
        (command("x", env={"WANDB_MODE": "offline"}), ["x"], ["WANDB_MODE"], True),
        (command("x", env={"WANDB_MODE": "offline"}), ["x"], ["any"], True),
    ],
)
def test_a_worker_takes_what_it_allows(
    plan: Plan, allow: list[str], allow_env: list[str], taken: bool
) -> None:
    assert allows(plan, allow, allow_env) is taken


def test_every_command_that_a_run_may_get_counts() -> None:
    remedies = {"out_of_memory": {"workload": {"command": "smaller"}}}
    phases = [{"name": "try", "steps": 10, "workload": {"command": "other x"}}]
    plan = foreign(phases=phases, remedies=remedies, max_remedies=1)
    assert programs(plan) == {"python", "other", "smaller"}
    assert not allows(plan, ["python", "other"], [])


def test_what_is_missing_is_said() -> None:
    assert needs(parse_plan(bundled_plan("demo"))) is None
    assert needs(command("x", env={"WANDB_MODE": "a", "B": "c"})) == (
        "GONOGO_WORKER_ALLOW=x and GONOGO_WORKER_ALLOW_ENV=B,WANDB_MODE"
    )


@pytest.mark.parametrize(
    ("held", "lacked"),
    [
        ({"rack": "a", "gpu": "h100"}, {}),
        ({"rack": "a"}, {"gpu": "h100"}),
        ({}, {"rack": "a", "gpu": "h100"}),
    ],
)
def test_a_worker_must_hold_all_the_labels_that_a_plan_asks_for(
    held: dict[str, str], lacked: dict[str, str]
) -> None:
    plan = command("x", labels={"rack": "a", "gpu": "h100"})
    assert lacks(plan, held) == lacked
    assert not lacks(command("x"), held)


def test_only_a_scheduler_spans_several_hosts() -> None:
    one = parse_plan(bundled_plan("demo"))
    two = parse_plan(with_overrides(bundled_plan("demo"), {"workload.nodes": 2}))
    assert needs(two) == "GONOGO_ENGINE=slurm"
    taken = [spans(plan, engine) for plan in (one, two) for engine in EngineName]
    assert taken == [True, True, True, False, True, True]
