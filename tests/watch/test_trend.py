"""Does a series of points rise? Slopes, and their lower bound."""

import math
import random
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.watch.trend import thinned, trend_of


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
