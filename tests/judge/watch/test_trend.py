"""Does a series rise? Slopes, their lower bound, and what is no rise that goes on."""

import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.judge.watch.series import AGREE, SCALES, Look, Series, slope_of
from gonogo.judge.watch.trend import thinned, trend_of

LOOK = Look(after=0, least=16, most=64, rise_ratio=0.05)


def line(count: int, slope: float, at: float = 100.0) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), at + slope * x) for x in range(count))


def test_a_straight_line_has_its_own_slope_and_bound() -> None:
    trend = trend_of(line(20, 3.0))
    assert (trend.slope, trend.lower) == (3.0, 3.0)


def test_a_third_of_the_points_may_lie_anywhere() -> None:
    points = [(x, y if round(x) % 4 else 1e9) for x, y in line(40, 3.0)]
    assert trend_of(points).slope == pytest.approx(3.0, abs=0.5)


def test_the_bound_covers_the_true_slope_as_often_as_it_says() -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(400):
        points = [(x, y + rng.gauss(0, 5)) for x, y in line(24, 0.2)]
        covered += trend_of(points).lower <= 0.2
    assert 0.92 <= covered / 400 <= 0.98


def test_few_points_have_no_bound() -> None:
    assert trend_of(line(3, 1.0)).lower == -math.inf
    with pytest.raises(ValueError, match="two points"):
        trend_of(line(1, 1.0))


@pytest.mark.parametrize(
    ("count", "place"), [(4, 0), (6, 3), (10, 13), (12, 21), (100, 2198), (101, 2244)]
)
def test_the_bound_is_the_slope_that_sen_s_table_names(count: int, place: int) -> None:
    slopes = sorted(float(a * a + a * b + b * b) for a, b in combinations(range(count), 2))
    trend = trend_of([(float(x), float(x**3)) for x in range(count)])
    assert trend.lower == slopes[place]
    assert trend.slope == statistics.median(slopes)


def test_two_points_have_a_slope() -> None:
    assert trend_of(line(2, 3.0)).slope == 3.0


@given(st.integers(1, 300), st.integers(8, 64))
def test_thinned_points_are_few_and_keep_their_line(count: int, most: int) -> None:
    points = thinned(line(count, 2.0), most)
    assert len(points) <= most
    assert all(y == pytest.approx(100.0 + 2.0 * x) for x, y in points)


@pytest.mark.parametrize(
    ("values", "rises"),
    [
        ([100.0 + x for x in range(64)], True),
        ([100.0 + 0.01 * x for x in range(64)], False),
        ([100.0] * 64, False),
        ([164.0 - x for x in range(64)], False),
        ([100.0 if x < 32 else 150.0 for x in range(64)], False),
        ([100.0 + 50.0 * (x // 22) for x in range(64)], False),
        ([100.0 + 60.0 * (1 - math.exp(-x / 8)) for x in range(64)], False),
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
        "three stairs",
        "fills up",
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
    assert [x for x, _ in (*series.scales[0], *series.newest)] == [6.0, 7.0, 8.0]


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
