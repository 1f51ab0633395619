"""Bounds hold whatever the missing samples were, and no further."""

from __future__ import annotations

from math import inf

import pytest

from gonogo.contract.criterion import Aggregate
from gonogo.judge.facts.measure import AGGREGATES, quantile

FIVE = [(step, float(step)) for step in range(1, 6)]


@pytest.mark.parametrize(
    ("aggregate", "missing", "value", "low", "high"),
    [
        ("min", 0, 1.0, 1.0, 1.0),
        ("min", 1, 1.0, -inf, 1.0),
        ("max", 0, 5.0, 5.0, 5.0),
        ("max", 1, 5.0, 5.0, inf),
        ("mean", 0, 3.0, 3.0, 3.0),
        ("mean", 1, 3.0, -inf, inf),
        ("median", 0, 3.0, 3.0, 3.0),
        ("median", 1, 3.0, 2.0, 4.0),
        ("median", 2, 3.0, 2.0, 4.0),
        ("median", 4, 3.0, 1.0, 5.0),
        ("median", 5, 3.0, -inf, inf),
        ("median", 10**18, 3.0, -inf, inf),
        ("p95", 0, 4.8, 4.8, 4.8),
        ("p95", 1, 4.8, 4.0, inf),
        ("p95", 10**18, 4.8, -inf, inf),
        ("count", 0, 5.0, 5.0, 5.0),
        ("count", 2, 5.0, 5.0, 7.0),
        ("slope", 0, 1.0, 1.0, 1.0),
        ("slope", 1, 1.0, -inf, inf),
        ("last", 0, 5.0, 5.0, 5.0),
        ("last", 1, 5.0, -inf, inf),
        ("all_finite", 0, 1.0, 1.0, 1.0),
    ],
)
def test_what_is_missing_moves_an_aggregate_so_far(
    aggregate: str, missing: int, value: float, low: float, high: float
) -> None:
    found = AGGREGATES[Aggregate(aggregate)](FIVE, missing, 5 + missing)
    assert found.value == pytest.approx(value)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_the_last_value_is_certain_once_its_step_is_there() -> None:
    found = AGGREGATES[Aggregate.LAST](FIVE, 3, 5)
    assert (found.low, found.value, found.high) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 1.0), (0.5, 3.0), (0.9, 4.6), (0.25, 2.0), (0.3, 2.2), (1.0, 5.0)]
)
def test_a_quantile_lies_between_its_neighbours(q: float, value: float) -> None:
    assert quantile([5.0, 1.0, 4.0, 2.0, 3.0], q) == pytest.approx(value)
    assert quantile([7.0], q) == 7.0
