"""What built-in criteria rest on: who differs from most ranks, and what halted, in words."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.outcome import Detector
from gonogo.judge.gate.answers import Unequal, Word, halts, told, unequal
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, finding, record_of


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1], []),
        ([1, 1], []),
        ([1, 2], [(None, None, {"0": 1, "1": 2}, False)]),
        ([1, 1, 2], [("2", 1, 2, True)]),
        ([2, 1, 1], [("0", 1, 2, True)]),
        ([1, 1, 2, 2], [(None, None, {"0": 1, "1": 1, "2": 2, "3": 2}, False)]),
        ([3, 1, 1, 1, 2], [("0", 1, 3, True), ("4", 1, 2, True)]),
    ],
    ids=str,
)
def test_most_ranks_say_what_is_right_where_the_order_does_not(
    values: list[int],
    found: list[tuple[str | None, Any, Any, bool]],
) -> None:
    rules = build_rules(order_of())
    rows = [(str(rank), {"colour": value}) for rank, value in enumerate(values)]
    seen = [(row.rank, row.wanted, row.found, row.by_peers) for row in unequal(rows, rules)]
    assert seen == found
    assert {row.name for row in unequal(rows, rules)} <= {"colour"}


@pytest.mark.parametrize(("ranks", "more"), [(2, ""), (4, ""), (5, " and 1 more")])
def test_of_ranks_that_differ_four_are_told(ranks: int, more: str) -> None:
    row = Unequal(name="dim", rank=None, wanted=None, found={str(r): 64 + r for r in range(ranks)})
    values = ", ".join(f"{64 + rank} on rank {rank}" for rank in range(min(ranks, 4)))
    assert told(row) == f"dim differs between the ranks: {values}{more}"


def test_a_rank_that_differs_from_most_is_told_so() -> None:
    row = Unequal(name="dim", rank="1", wanted=128, found=64, by_peers=True)
    assert told(row) == "dim of rank 1 is 64, 128 is that of most ranks"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({}, "stall"),
        ({"rank": 0}, "stall on rank 0"),
        ({"section": "log"}, "stall in log"),
        ({"rank": 1, "section": "data"}, "stall on rank 1 in data"),
    ],
    ids=str,
)
def test_the_first_halt_is_told_with_what_is_known_of_it(where: dict[str, Any], text: str) -> None:
    facts = facts_of(record_of(findings=[finding(Detector.STALL, **where)]))
    assert halts(facts) == (Word.FAIL, 1, text)
