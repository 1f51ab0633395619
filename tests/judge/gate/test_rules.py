"""Rules are derived from order.json, which anyone may have edited."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Condition
from gonogo.contract.errors import Rejected
from gonogo.contract.order import MOST_STEPS, OpenCondition, Order
from gonogo.judge.gate.added_criteria import weaknesses
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.ordering import build_command_order
from gonogo.supervise.preflight.host_checks import WITHOUT_SERVICE
from tests.data.make_runs import order_of
from tests.judge.runs import with_gate


def order_with(evals: Any) -> Order:
    order = order_of()
    return order.model_copy(update={"train": {**order.train, "eval": evals}})


@pytest.mark.parametrize(
    ("evals", "every"),
    [
        ({"every_steps": 5}, 5), ({"every_steps": 0}, 0), ({"every_steps": MOST_STEPS}, MOST_STEPS),
        ({"every_steps": None}, None), ({}, None), (None, None), ("often", None),
    ],
)  # fmt: skip
def test_how_often_an_evaluation_is_due_is_as_ordered(evals: Any, every: int | None) -> None:
    assert build_rules(order_with(evals)).eval_every_steps == every


@pytest.mark.parametrize("every", [-1, MOST_STEPS + 1, True, 2.0, "5", [5]])
def test_what_is_no_number_of_steps_is_refused(every: Any) -> None:
    with pytest.raises(Rejected, match="is no number of steps"):
        build_rules(order_with({"every_steps": every}))


def test_two_criteria_of_one_id_are_no_gate() -> None:
    """The first one would be judged by what the second one measures."""
    order = with_gate(
        order_of(),
        {"id": "good", "metric": "loss", "pass_below": 0.1},
        {"id": "good", "metric": "fetch_share", "pass_below": 0.9},
    )
    with pytest.raises(Rejected, match=r"order\.json: gate\.good: two criteria have the same id"):
        build_rules(order)


def test_a_run_measures_the_conditions_that_a_number_can_settle() -> None:
    asked = Criterion.model_validate({"id": "fast", "metric": "toks_per_s", "pass_above": 1.0})
    waiting = [
        OpenCondition(
            condition=Condition(id=f"smoke:{name}", text="", criterion=name), criterion=criterion
        )
        for name, criterion in {"fast": asked, "remedied": None}.items()
    ]
    (row,) = build_rules(order_of(), waiting).conditions
    assert (row.condition, row.criterion) == (waiting[0].condition, asked)


def test_a_name_makes_no_plan() -> None:
    order = build_command_order(
        ["a"], experiment="e", run="r", cwd="/", steps=9, preflight=WITHOUT_SERVICE, stall_s=9_000
    )
    named = build_rules(order.model_copy(update={"plan": "nightly"}))
    assert [row for row in weaknesses(named) if row.is_condition] == []


@pytest.mark.parametrize(("command", "programs"), [(None, None), (["torchrun", "train.py"], 1)])
def test_a_command_is_one_program_of_all_ranks(
    command: list[str] | None, programs: int | None
) -> None:
    order = order_of().model_copy(update={"command": command})
    assert build_rules(order).programs == programs


@pytest.mark.parametrize(("resumed", "first"), [(None, 1), (6, 7)])
def test_the_first_expected_step_follows_the_checkpoint(resumed: int | None, first: int) -> None:
    assert build_rules(order_of(resume_step=resumed)).first_step == first


def test_a_long_text_of_an_order_is_cut() -> None:
    with pytest.raises(Rejected) as found:
        build_rules(order_with({"every_steps": "x" * 99}))
    assert f": '{'x' * 40}' is no" in str(found.value)
