"""Each aggregate is one number of a rank's samples."""

from __future__ import annotations

import pytest

from gonogo.contract.criterion import Aggregate, Criterion
from gonogo.judge.facts import metrics
from gonogo.judge.facts.metrics import AGGREGATES, fewest_samples, needed_share, quantile

FIVE = [(step, float(step)) for step in range(1, 6)]


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [
        ("min", 1.0), ("max", 5.0), ("mean", 3.0), ("median", 3.0), ("p95", 4.8), ("count", 5.0),
        ("slope", 1.0), ("last", 5.0), ("all_finite", 1.0),
    ],
)  # fmt: skip
def test_an_aggregate_is_one_number(aggregate: str, value: float) -> None:
    assert AGGREGATES[Aggregate(aggregate)](FIVE) == pytest.approx(value)


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 1.0), (0.5, 3.0), (0.9, 4.6), (0.25, 2.0), (0.3, 2.2), (1.0, 5.0)]
)
def test_a_quantile_lies_between_its_neighbours(q: float, value: float) -> None:
    assert quantile([5.0, 1.0, 4.0, 2.0, 3.0], q) == pytest.approx(value)
    assert quantile([7.0], q) == 7.0


@pytest.mark.parametrize(
    ("metric", "aggregate", "fewest", "share"),
    [
        ("loss", Aggregate.MEDIAN, 1, 0.95), ("loss", Aggregate.SLOPE, 2, 0.95),
        ("loss", Aggregate.MAX, 1, 1.0), ("step_cv", Aggregate.MAX, 2, 0.95),
        ("forecast_s", Aggregate.MEDIAN, 1, 0.95),
        ("gpu_mem_slope_mb_per_step", Aggregate.MEDIAN, 2, 0.95),
    ],
)  # fmt: skip
def test_a_slope_needs_two_samples_whoever_takes_it(
    metric: str, aggregate: Aggregate, fewest: int, share: float
) -> None:
    row = Criterion(id="c", metric=metric, aggregate=aggregate, pass_below=1.0)
    assert (fewest_samples(row), needed_share(row)) == (fewest, share)


def test_samples_are_told_in_at_most_sixty_four_blocks() -> None:
    assert [len(metrics.block_means([1.0] * count)) for count in (64, 65)] == [64, 33]
