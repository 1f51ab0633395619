"""What has a run failed, whatever later runs of its phase measure?"""

from __future__ import annotations

import math
from typing import Any

import pytest

from gonogo.contract.decision import Condition
from gonogo.contract.order import OpenCondition
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import Judgement, judge
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.runs import exit_record, record_of, with_gate

SLOW: dict[str, Any] = {"id": "row", "metric": "toks_per_s", "pass_above": 1e9}
GREY = {**SLOW, "fail_below": 1.0}
LEARNS = {"id": "row", "metric": "loss", "pass_below": -1.0}
DEAR: dict[str, Any] = {"id": "row", "metric": "cost", "pass_below": 0.0}
COMPLETED, LOST, NAN = OutcomeCode.COMPLETED, OutcomeCode.KEEPER_LOST, OutcomeCode.NON_FINITE


def judged_as(code: OutcomeCode | None, *rows: dict[str, Any], **rules: Any) -> Judgement:
    """Return this gate's judgement of a healthy run with the given end."""
    order = with_gate(order_of(), *rows)
    asked = build_rules(order).model_copy(update=rules)
    end = exit_record(code or COMPLETED, by=Actor.INFRA)
    facts = build_facts(record_of(order, exit=end), asked)
    return judge(facts if code else facts.model_copy(update={"outcome": None}), asked)


@pytest.mark.parametrize(
    ("row", "code", "failed"),
    [
        ({**SLOW, "severity": "conditional"}, COMPLETED, ["row"]),
        ({**SLOW, "severity": "required"}, COMPLETED, ["row"]),
        ({**SLOW, "severity": "advisory"}, COMPLETED, []), (GREY, COMPLETED, ["row"]),
        ({**GREY, "grey": "conditional"}, COMPLETED, ["row"]),
        ({**SLOW, "severity": "conditional"}, LOST, ["row"]), (SLOW, LOST, ["row"]),
        ({**SLOW, "pass_above": 1.0}, LOST, []), (GREY, LOST, ["row"]), (SLOW, NAN, ["row"]),
        (LEARNS, LOST, ["row"]), (LEARNS, NAN, ["row"]), (DEAR, LOST, []), (SLOW, None, []),
    ],
)  # fmt: skip
def test_what_a_run_has_failed_is_what_no_other_run_undoes(
    row: dict[str, Any], code: OutcomeCode | None, failed: list[str]
) -> None:
    assert judged_as(code, row).failed == failed


NORM: dict[str, Any] = {"id": "row", "metric": "grad_norm", "pass_below": 5.0}
NONE_IS_ERROR = {"id": "row", "metric": "val_loss", "pass_below": 50.0, "on_nan": "error"}


@pytest.mark.parametrize(
    ("row", "code", "failed"),
    [
        (NORM, COMPLETED, ["row"]),
        ({**NORM, "pass_below": 200.0}, COMPLETED, []),
        ({**NORM, "severity": "conditional"}, COMPLETED, ["row"]),
        (NORM, LOST, []),  # more of them may have come
        (NONE_IS_ERROR, COMPLETED, ["row"]),
        (NONE_IS_ERROR, LOST, ["row"]),
        ({**NONE_IS_ERROR, "severity": "advisory"}, LOST, []),
    ],
)
def test_what_was_told_in_part_or_is_no_number_is_not_forgotten_by_the_next_run(
    row: dict[str, Any], code: OutcomeCode, failed: list[str]
) -> None:
    """The best of several runs was GO."""
    order = with_gate(order_of(), row)
    ranks = healthy_ranks(order)
    for line in (line for rank in ranks for line in rank.lines):
        if line["msg"] == "progress":
            line["grad_norm"] = 100.0 if line["step"] % 2 else None
        elif line["msg"] == "eval":
            line["val_loss"] = math.nan
    rules = build_rules(order)
    end = exit_record(code, by=Actor.INFRA)
    found = judge(build_facts(record_of(order, ranks, exit=end), rules), rules)
    assert found.verdict in ("INCONCLUSIVE", "CONDITIONAL_GO")
    assert found.failed == failed


@pytest.mark.parametrize(
    ("code", "tokens", "failed"),
    [(LOST, 256, ["identity"]), (LOST, 512, []), (COMPLETED, 256, [])],
    ids=["other steps", "as ordered", "whole: its verdict says so"],
)
def test_other_work_than_was_ordered_is_failed_by_who_was_ended(
    code: OutcomeCode, tokens: int, failed: list[str]
) -> None:
    ranks = healthy_ranks(order_of())
    for line in (line for rank in ranks for line in rank.lines if "tokens" in line):
        line["tokens"] = tokens
    rules = build_rules(order_of())
    end = exit_record(code, by=Actor.INFRA)
    facts = build_facts(record_of(order_of(), ranks, exit=end), rules)
    assert judge(facts, rules).failed == failed


@pytest.mark.parametrize("code", [COMPLETED, LOST])
@pytest.mark.parametrize(("above", "failed"), [(1e9, ["before:row"]), (1.0, [])])
def test_an_open_condition_is_failed_by_the_run_that_was_to_meet_it(
    code: OutcomeCode, above: float, failed: list[str]
) -> None:
    order = with_gate(order_of(), {**SLOW, "pass_above": above})
    condition = Condition(id="before:row", text="slow", criterion="row", state="open")
    (criterion,) = build_rules(order).gate
    waits = OpenCondition(condition=condition, criterion=criterion)
    assert judged_as(code, conditions=[waits]).failed == failed


@pytest.mark.parametrize(
    ("code", "last", "skipped", "failed"),
    [
        (LOST, 11, True, ["coverage"]),
        (LOST, 6, True, ["coverage"]),
        (LOST, 5, True, []),  # most of its steps may still be taken
        (LOST, 11, False, []),
        (OutcomeCode.HALTED, 11, True, ["coverage"]),
        (COMPLETED, 12, True, []),  # its verdict says so
    ],
)
def test_an_ended_run_fails_by_steps_that_trained_nothing(
    code: OutcomeCode, last: int, skipped: bool, failed: list[str]
) -> None:
    """A run that resumed from its checkpoint had too few steps to show it."""
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        kept = [line for line in rank.lines if line["step"] <= last]
        rank.lines = kept if last == 12 else [line for line in kept if line["msg"] != "done"]
        for line in rank.lines:
            if line["msg"] == "progress":
                line["skipped"] = skipped
    rules = build_rules(order_of())
    end = exit_record(code, by=Actor.INFRA)
    facts = build_facts(record_of(order_of(), ranks, exit=end), rules)
    assert judge(facts, rules).failed == failed
