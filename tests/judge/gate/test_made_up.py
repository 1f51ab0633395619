"""What was made up on purpose is said beside the verdict, and changes none."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.order import Order
from gonogo.judge.gate.made_up import MADE_UP
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import evaluate_gate, judge
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, record_of


def notes(order: Order, devices: str | None = None) -> list[Any]:
    """The notes on a healthy run; its verdict is GO whatever they say."""
    facts = facts_of(record_of(order)).model_copy(update={"devices": devices})
    rules = build_rules(order)
    assert judge(facts, rules).verdict == "GO"
    return [row for row in evaluate_gate(facts, rules) if row.id == MADE_UP]


def order(*, allow_faults: bool, fault: str | None = None) -> Order:
    return order_of().model_copy(update={"allow_faults": allow_faults, "fault": fault})


@pytest.mark.parametrize(
    ("fault", "devices", "text"),
    [
        (None, None, "the order lets faults be put in on purpose; it names none"),
        ("hang:step=3", None, "fault hang:step=3 was put in on purpose"),
        (
            None,
            "5" * 64,
            "the order lets faults be put in on purpose; it names none; what the devices said may"
            " come from a script, not from devices",
        ),
    ],
)
def test_what_an_order_allows_to_be_made_up_is_said(
    fault: str | None, devices: str | None, text: str
) -> None:
    (note,) = notes(order(allow_faults=True, fault=fault), devices)
    assert (note.severity, note.outcome, note.evidence) == ("advisory", "inconclusive", text)
    assert note.observed == fault


def test_where_nothing_may_be_made_up_nothing_is_said() -> None:
    plain = order(allow_faults=False)
    assert notes(plain, "5" * 64) == []
    assert not {"allow_faults", "fault"} & build_rules(plain).document().keys()
    assert build_rules(order(allow_faults=True)).document()["allow_faults"] is True
