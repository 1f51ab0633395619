"""Processes of a rank come in the order of clocks that cannot be set."""

from __future__ import annotations

import itertools

import pytest

from gonogo.timeline.boots import boots_in_order

BEGAN = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}

ORDERS = [
    ((), ["a", "b", "c", "d"]),
    (("a", "b", "c", "d"), ["a", "b", "c", "d"]),
    (("a", "a", "c", "a", "c"), ["a", "b", "c", "d"]),
    (("b",), ["a", "b", "c", "d"]),
    (("c", "a"), ["b", "c", "a", "d"]),
    (("d", "b"), ["a", "c", "d", "b"]),
    (("nobody", "b"), ["a", "b", "c", "d"]),
]


@pytest.mark.parametrize(("named", "order"), ORDERS, ids=[",".join(row[0]) for row in ORDERS])
def test_the_ticks_come_first_and_then_the_monotonic_clock(
    named: tuple[str, ...], order: list[str]
) -> None:
    for rows in itertools.permutations(BEGAN.items()):
        assert boots_in_order(dict(rows), named) == order


def test_two_that_began_at_once_are_told_apart_by_name() -> None:
    assert boots_in_order({"b": 1.0, "a": 1.0}) == ["a", "b"]
    assert boots_in_order({}, ("a",)) == []
