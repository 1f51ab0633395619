"""Do numbers near the largest double end neither a watch nor a judging?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import mean_of
from gonogo.judge.facts.metrics import block_means, slope

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=200))
def test_the_mean_of_finite_numbers_lies_among_them(values: list[float]) -> None:
    mean = mean_of(values)
    slack = 1e-12 * max(map(abs, values))
    assert min(values) - slack <= mean <= max(values) + slack


@given(st.lists(FINITE, min_size=2, max_size=80))
def test_whatever_is_measured_of_finite_numbers_ends_nothing(values: list[float]) -> None:
    assert len(block_means(values)) <= 64
    slope(list(enumerate(values)))


def test_a_slope_that_no_double_holds_is_unknown() -> None:
    assert math.isnan(slope([(1, 1.7e308), (2, -1.7e308), (3, 1.7e308), (4, -1.7e308)]))
    assert slope([(1, 1.0), (2, 3.0)]) == pytest.approx(2.0)
