"""Does one number of one rank keep rising? What is a rise that goes on, and on which scale."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.watch.detectors.series import (
    AGREE,
    SCALES,
    Look,
    Series,
    slope_above_zero,
    slope_of,
    thinned,
)

LOOK = Look(after=0, least=16, most=64, rise_ratio=0.05)


def sampled(values: list[float]) -> Series:
    series = Series(boot="b")
    for step, value in enumerate(values):
        series = series.with_sample(step, value, LOOK)
    return series


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        ([100.0 + x for x in range(64)], True),
        ([100.0 + 0.01 * x for x in range(64)], False),
        ([100.0] * 64, False),
        ([164.0 - x for x in range(64)], False),
        ([100.0 if x < 32 else 150.0 for x in range(64)], False),
        ([100.0 + x + 20.0 * (x % 5 == 0) for x in range(64)], True),
        ([100.0 + 40.0 * (x % 2) for x in range(64)], False),
        ([100.0 + 8.0 * (x // 8) for x in range(64)], True),
    ],
    ids=[
        "line",
        "one per cent",
        "flat",
        "falls",
        "one jump",
        "line with spikes",
        "saw",
        "many stairs",
    ],
)
def test_only_a_rise_that_goes_on_is_one(values: list[float], rises: bool) -> None:
    samples = tuple((float(x), y) for x, y in enumerate(values))
    assert (slope_of(samples, 0.05) > 0) is rises


@given(st.integers(0, 10_000), st.floats(0.5, 30.0))
def test_noise_around_a_level_seldom_rises_by_a_share(seed: int, sigma: float) -> None:
    rng = random.Random(seed)
    samples = tuple((float(x), 2000.0 + rng.gauss(0, sigma)) for x in range(128))
    assert slope_of(samples, 0.05) == 0.0


def test_a_series_keeps_as_much_as_it_is_told_on_every_scale() -> None:
    series = Series(boot="b")
    for step in range(1, 2001):
        series = series.with_sample(step, 100.0, LOOK)
    assert [len(scale) for scale in series.scales] == [64, 64, 31, 3]
    assert [scale[-1][0] % stride for scale, stride in zip(series.scales, SCALES, strict=True)] == [
        0.0
    ] * 4


@pytest.mark.parametrize(("per_step", "found_by"), [(1.0, 200), (0.1, 1500), (0.01, 20_000)])
def test_a_slow_rise_is_found_on_a_wider_scale(per_step: float, found_by: int) -> None:
    series = Series(boot="b")
    for step in range(1, found_by):
        series = series.with_sample(step, 1000.0 + per_step * step, LOOK)
    assert series.slope == pytest.approx(per_step, rel=0.01)
    assert series.steady


def test_samples_at_the_start_and_steps_told_twice_are_left_out() -> None:
    series = Series(boot="b")
    look = Look(after=5, least=16, most=64, rise_ratio=0.05)
    for step in (1, 2, 3, 4, 5, 6, 7, 7, 6, 8):
        series = series.with_sample(step, 100.0, look)
    assert [x for x, _ in series.scales[0]] == [6.0, 7.0, 8.0]


def test_one_look_is_not_enough_to_be_steady() -> None:
    series = Series(boot="b")
    for step in range(1, 17):
        series = series.with_sample(step, 100.0 + step, LOOK)
    assert (series.looks, series.steady) == (1, AGREE == 1)
    for step in range(17, 19):
        series = series.with_sample(step, 100.0 + step, LOOK)
    assert series.steady
    assert series.last == 118.0
    assert series.slope == pytest.approx(1.0)
    assert statistics.fmean(series.agreed) == AGREE / len(SCALES)


def test_before_its_first_sample_a_series_has_no_value_and_no_slope() -> None:
    own = Series(boot="b")
    assert (own.last, own.slope, own.steady, own.risen) == (0.0, 0.0, False, 0.0)
    assert sampled([3.0]).last == 3.0


def test_a_scale_is_looked_at_again_after_an_eighth_of_its_least() -> None:
    assert [sampled([100.0] * count).looks for count in (15, 16, 17, 18)] == [0, 1, 1, 2]
    assert sampled([100.0] * 128).looks - sampled([100.0] * 127).looks == 2


def test_a_series_that_stops_rising_is_no_longer_steady() -> None:
    rising = [100.0 + x for x in range(20)]
    assert sampled(rising).steady
    assert not sampled([*rising, *[119.0] * 30]).steady


def test_the_smaller_slope_of_all_samples_and_of_the_later_half_counts() -> None:
    faster = [(float(x), 100.0 + (x if x < 32 else 3 * x - 64)) for x in range(64)]
    slower = [(float(x), 100.0 + (3 * x if x < 32 else x + 64)) for x in range(64)]
    assert slope_of(slower, 0.05) == pytest.approx(1.0)
    assert 1.0 < slope_of(faster, 0.05) < 3.0


@pytest.mark.parametrize(("size", "share"), [(24, 0.05), (64, 0.05)])
def test_the_bound_is_above_zero_by_chance_as_seldom_as_it_says(size: int, share: float) -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(300):
        found += slope_above_zero([(float(x), rng.gauss(0, 5)) for x in range(size)]) > 0.0
    assert 0.02 <= found / 300 <= 0.02 + 2 * share


def test_a_third_of_the_points_may_lie_anywhere() -> None:
    points = [(float(x), 100.0 + 3.0 * x if x % 4 else 1e9) for x in range(40)]
    assert slope_above_zero(points) == pytest.approx(3.0, abs=0.5)


@given(st.integers(1, 300), st.integers(8, 64))
def test_thinned_points_are_few_and_keep_their_line(count: int, most: int) -> None:
    points = thinned([(float(x), 100.0 + 2.0 * x) for x in range(count)], most)
    assert len(points) <= most
    assert all(y == pytest.approx(100.0 + 2.0 * x) for x, y in points)
