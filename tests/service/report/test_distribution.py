"""Does a histogram show where the samples are, and is none of them lost?"""

from __future__ import annotations

import math

import pytest

from service.report.distribution import BINS, build_distribution


def test_nothing_and_nothing_finite_have_no_spread() -> None:
    assert build_distribution([]) is None
    assert build_distribution([math.nan, math.inf]) is None


@pytest.mark.parametrize("values", [[0.5], [2.0] * 7], ids=["one", "all alike"])
def test_equal_samples_are_one_bin(values: list[float]) -> None:
    spread = build_distribution(values)
    assert spread is not None
    assert [(row.low, row.high, row.count) for row in spread.bins] == [
        (values[0], values[0], len(values))
    ]
    assert (spread.median, spread.p95, spread.most, spread.slow) == (values[0],) * 3 + (0,)


def test_quantiles_and_bins_hold_every_sample() -> None:
    values = [1.0 + number / 100 for number in range(101)]
    spread = build_distribution(reversed(values))
    assert spread is not None
    assert (spread.least, spread.median, spread.most) == (1.0, 1.5, 2.0)
    assert spread.p95 == pytest.approx(1.95)
    assert spread.p99 == pytest.approx(1.99)
    assert len(spread.bins) == 20 <= BINS
    assert sum(row.count for row in spread.bins) == spread.samples == 101
    assert (spread.bins[0].low, spread.bins[-1].high) == (1.0, pytest.approx(2.0))
    assert (spread.beyond, spread.slow) == (0, 0)


def test_one_slow_step_does_not_flatten_the_rest() -> None:
    spread = build_distribution([1.0, 1.1] * 50 + [500.0])
    assert spread is not None
    assert spread.bins[-1].high == pytest.approx(1.1)
    assert (spread.beyond, spread.slow, spread.most) == (1, 1, 500.0)
    assert sum(row.count for row in spread.bins) == 100
    assert sum(row.count > 0 for row in spread.bins) == 2
