"""Metrics of the program itself: samples, gates and comparisons of what lines hold in `user`."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.criterion import Compared
from gonogo.contract.decision import CriterionOutcome
from gonogo.judge.compare.unit import NoUnit, Unit, ask, build_unit
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import build_measure
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import read_lines
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.runs import record_of, with_gate

ORDER = order_of()
LOGGED = {2: 0.5, 6: 0.9, 12: 0.7}
"""Step → accuracy, as one rank of two logs it."""


def judged(*gate: dict[str, Any], logged: dict[int, float | str] | None = None) -> Any:
    """Record and rules of a healthy run of two ranks, of which rank 1 logs an accuracy."""
    order = with_gate(ORDER, *gate) if gate else ORDER
    ranks = healthy_ranks(order)
    for line in ranks[1].lines:
        if line["msg"] == "progress" and line["step"] in (LOGGED if logged is None else logged):
            line["user"] = {"acc": (LOGGED if logged is None else logged)[line["step"]]}
    return order, record_of(order, ranks), build_rules(order)


def beat(seq: int, step: int, boot: str = "b", msg: str = "metrics", **user: float) -> bytes:
    """A line of a rank."""
    row = {"v": 1, "ts": 1.0, "mono": seq / 10, "pid": 1, "rank": 0, "boot": boot, "seq": seq}
    return wire_line({**row, "step": step, "msg": msg, "user": user or None})


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({"aggregate": "last", "pass_above": 0.7}, "pass"),
        ({"aggregate": "last", "pass_above": 0.8}, "fail"),
        ({"aggregate": "max", "pass_above": 0.9}, "pass"),
        ({"aggregate": "count", "pass_above": 3}, "pass"),
        ({"aggregate": "min", "warmup_steps": 2, "pass_above": 0.7}, "pass"),
        ({"metric": "user/f1", "pass_above": 0.1}, "inconclusive"),
    ],
)
def test_a_gate_looks_at_what_one_rank_logged(row: dict[str, Any], outcome: str) -> None:
    order, record, rules = judged({"id": "own", "metric": "user/acc", **row})
    (criterion,) = (one for one in order.gate if one.id == "own")
    measure = build_measure(criterion, record.ranks, rules)
    assert evaluate(criterion, measure, 2).outcome == CriterionOutcome(outcome)


def test_a_number_that_is_not_finite_fails() -> None:
    row = {"id": "own", "metric": "user/acc", "aggregate": "last", "pass_above": 0.1}
    order, record, rules = judged(row, logged={12: "NaN"})
    (criterion,) = (one for one in order.gate if one.id == "own")
    found = evaluate(criterion, build_measure(criterion, record.ranks, rules), 2)
    assert (found.outcome, found.observed) == (CriterionOutcome.FAIL, "NaN")


@pytest.mark.parametrize(
    ("how", "higher", "value"),
    [
        (None, True, 0.7), (Compared.LAST, True, 0.7), (Compared.BEST, True, 0.9),
        (Compared.BEST, False, 0.5), (Compared.MEAN, True, 0.7),
    ],
)  # fmt: skip
def test_a_run_is_compared_by_its_last_best_or_mean_number(
    how: Compared | None, higher: bool, value: float
) -> None:
    question = ask("user/acc", higher_is_better=higher, aggregate=how, warmup_steps=0)
    unit = brought(question)
    assert isinstance(unit, Unit)
    assert unit.value == pytest.approx(value)
    assert bool(unit.blocks) is (how is Compared.MEAN)


def brought(question: Any) -> Unit | NoUnit:
    """What the run contributes to a comparison."""
    order, record, rules = judged()
    measures = {
        str(row.metric): build_measure(row, record.ranks, rules) for row in question.criteria()
    }
    return build_unit("r", build_facts(record, rules), rules, measures, question, order=order)


def test_the_line_with_the_highest_number_counts_in_any_order() -> None:
    lines = [beat(1, 1, acc=1.0), beat(2, 1, acc=2.0), beat(3, 2, msg="progress", acc=3.0)]
    for rows in permutations(lines):
        assert read_lines(0, rows).steps.own("acc") == {1: 2.0, 2: 3.0}
