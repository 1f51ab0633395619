"""Does one number of one rank keep rising? What is a rise that goes on, and on which scale."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.watch.series import AGREE, SCALES, Look, Series, slope_of
from gonogo.watch.trend import thinned, trend_of

LOOK = Look(after=0, least=16, most=64, rise_ratio=0.05)


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


def sampled(values: list[float], look: Look = LOOK) -> Series:
    series = Series(boot="b")
    for step, value in enumerate(values):
        series = series.with_sample(step, value, look)
    return series


def test_before_its_first_sample_a_series_has_no_value_and_no_slope() -> None:
    own = Series(boot="b")
    assert (own.taken, own.looks, own.high, own.fell) == (0, 0, 0.0, 0.0)
    assert (own.last, own.slope, own.steady) == (0.0, 0.0, False)
    assert own.scales == ((), (), (), ())


def test_a_first_sample_at_step_zero_is_taken() -> None:
    assert sampled([3.0]).last == 3.0


def test_a_scale_is_looked_at_again_after_an_eighth_of_its_least() -> None:
    assert sampled([100.0] * 15).looks == 0
    assert [sampled([100.0] * count).looks for count in (16, 17, 18, 19, 20)] == [1, 1, 2, 2, 3]
    few = Look(after=0, least=8, most=64, rise_ratio=0.05)
    assert [sampled([100.0] * count, few).looks for count in (7, 8, 9)] == [0, 1, 2]


def test_a_wider_scale_is_looked_at_as_soon_as_it_has_enough() -> None:
    """Of every eighth sample: the first look at 16 of them is beside the first scale's."""
    before, after = sampled([100.0] * 127), sampled([100.0] * 128)
    assert len(after.scales[1]) == 16
    assert after.looks - before.looks == 2


def test_a_series_that_stops_rising_is_no_longer_steady() -> None:
    rising = [100.0 + x for x in range(20)]
    assert sampled(rising).steady
    flat = sampled([*rising, *[119.0] * 30])
    assert (flat.slopes[0], flat.agreed[0], flat.steady) == (0.0, 0, False)


def test_the_deepest_fall_from_a_high_is_kept() -> None:
    own = sampled([5.0, 9.0, 3.0, 8.0, 2.5, 9.0])
    assert (own.high, own.fell) == (9.0, 6.5)


def with_rise(rise: float, middle: float, base: float) -> tuple[tuple[float, float], ...]:
    """Eight samples that rise by so much, `middle` of it before the fifth."""
    first = [base + middle * x / 4 for x in range(4)]
    rest = [base + middle + (rise - middle) * x / 3 for x in range(4)]
    return tuple((float(x), y) for x, y in enumerate([*first, *rest]))


@pytest.mark.parametrize(
    ("base", "fell", "found"),
    [(80.0, 0.0, False), (79.0, 0.0, True), (0.0, 8.0 / 1.5, False), (0.0, 5.0, True)],
)
def test_a_rise_is_more_than_its_share_and_than_half_as_much_again_as_the_deepest_fall(
    base: float, fell: float, found: bool
) -> None:
    assert (slope_of(with_rise(8.0, 4.0, base), 0.1, fell) > 0) is found


def test_numbers_below_zero_rise_by_a_share_of_their_size() -> None:
    assert slope_of(with_rise(8.0, 4.0, -80.0), 0.1) == 0.0
    assert slope_of(with_rise(8.0, 4.0, -79.0), 0.1) > 0.0


@pytest.mark.parametrize(("middle", "found"), [(6.0, True), (6.25, False)])
def test_the_later_half_has_at_least_a_quarter_of_the_rise(middle: float, found: bool) -> None:
    assert (slope_of(with_rise(8.0, middle, 10.0), 0.05) > 0) is found


def test_the_smaller_slope_of_all_samples_and_of_the_later_half_counts() -> None:
    faster = tuple((float(x), 100.0 + (x if x < 32 else 3 * x - 64)) for x in range(64))
    slower = tuple((float(x), 100.0 + (3 * x if x < 32 else x + 64)) for x in range(64))
    assert slope_of(slower, 0.05) == pytest.approx(1.0)
    assert 1.0 < slope_of(faster, 0.05) < 3.0


@pytest.mark.parametrize(("before", "found"), [(0.0, False), (0.1, True)])
def test_a_bound_of_zero_is_above_zero_no_more(before: float, found: bool) -> None:
    """28 of 120 slopes are zero, and 16 below: the 42nd is Sen's bound."""
    values = [100.0 + before * x for x in range(8)] + [95.0 + 3.0 * x for x in range(8)]
    samples = tuple((float(x), y) for x, y in enumerate(values))
    assert (slope_of(samples, 0.05) > 0) is found


@pytest.mark.parametrize(("count", "points"), [(64, 64), (65, 32)])
def test_a_slope_is_taken_of_64_points_and_of_medians_where_there_are_more(
    count: int, points: int
) -> None:
    samples = tuple((float(x), 100.0 + x**1.5) for x in range(count))
    taken = thinned(samples, 64)
    assert slope_of(samples, 0.05) == trend_of(taken).slope
    assert len(taken) == points


def test_where_nothing_fell_a_small_rise_counts_as_well() -> None:
    assert slope_of(with_rise(0.5, 0.25, 0.0), 0.05) > 0.0
