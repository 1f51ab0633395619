"""Bounds hold whatever the missing samples were, and no further."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from gonogo.contract.criterion import Aggregate, Criterion
from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.facts.measure import AGGREGATES, build_measure, quantile
from gonogo.judge.facts.steps import build_rank_steps
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import order_of

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


def training(boot: str, mono: float, *said: dict[str, Any]) -> list[Heartbeat]:
    """A process that begins the run, and what its progress lines say of each step."""
    stamp = {"ts": mono, "mono": mono, "pid": 1, "rank": 0, "boot": boot}
    steps = enumerate(said, start=1)
    told = [Heartbeat(**stamp, seq=n, step=n, msg="progress", **fields) for n, fields in steps]
    return [Heartbeat(**stamp, seq=0, step=0, msg="boot"), *told]


@pytest.mark.parametrize("turned", [False, True])
def test_of_trainings_that_owe_more_and_less_the_one_that_told_the_smaller_share_counts(
    turned: bool,
) -> None:
    """One step that told all that it owed is not less than three of four."""
    skipped, norm = {"skipped": True}, {"grad_norm": 1.0}
    whole, partly = (skipped, skipped, skipped, norm), (norm, norm, {}, norm)
    first, last = (partly, whole) if turned else (whole, partly)
    steps = build_rank_steps([*training("a", 1.0, *first), *training("b", 9.0, *last)])
    criterion = Criterion(id="c", metric="grad_norm", aggregate="max", pass_below=9.0)
    order = order_of(sets={"train.dtype": "fp16", "phases.smoke.steps": 4})
    row = build_measure(criterion, {0: steps}, build_rules(order)).ranks["0"]
    assert (row.samples, row.owed) == (3, 4)
