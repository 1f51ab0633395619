"""Student's t against the printed tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.judge.compare.interval import incomplete_beta, t_quantile, t_tail

TABLE = [
    (0.975, 1, 12.7062047),
    (0.975, 2, 4.30265273),
    (0.975, 3, 3.18244631),
    (0.975, 5, 2.57058184),
    (0.975, 10, 2.22813885),
    (0.975, 30, 2.04227246),
    (0.975, 120, 1.97993041),
    (0.95, 4, 2.13184679),
    (0.99, 7, 2.99795157),
    (0.995, 9, 3.24983554),
    (0.9995, 2, 31.5990546),
    (0.8, 6, 0.905703285),
]


@pytest.mark.parametrize(("p", "df", "t"), TABLE, ids=str)
def test_quantiles_are_those_of_the_tables(p: float, df: float, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-7)


def test_closed_forms_of_one_and_two_degrees_of_freedom() -> None:
    for p in (0.6, 0.9, 0.999):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
        two = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
        assert t_quantile(p, 2) == pytest.approx(two, rel=1e-9)


def test_many_degrees_of_freedom_come_to_the_normal_distribution() -> None:
    assert t_quantile(0.975, 1e7) == pytest.approx(1.959964, rel=1e-5)


@given(p=st.floats(0.01, 0.99), df=st.floats(0.6, 500))
def test_the_quantile_undoes_the_tail_and_is_symmetric(p: float, df: float) -> None:
    t = t_quantile(p, df)
    assert t_tail(abs(t), df) == pytest.approx(min(p, 1 - p), rel=1e-6)
    assert t_quantile(1 - p, df) == pytest.approx(-t, rel=1e-6, abs=1e-9)


@given(df=st.floats(1.0, 200))
def test_more_degrees_of_freedom_reach_less(df: float) -> None:
    assert t_quantile(0.975, df + 1) < t_quantile(0.975, df)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.9, 0.0), (0.9, math.nan)])
def test_what_has_no_quantile_is_an_error(p: float, df: float) -> None:
    with pytest.raises(ValueError):
        t_quantile(p, df)


def test_the_incomplete_beta_function_ends_at_its_ends() -> None:
    assert incomplete_beta(2.0, 3.0, 0.0) == 0.0
    assert incomplete_beta(2.0, 3.0, 1.0) == 1.0
    assert incomplete_beta(1.0, 1.0, 0.3) == pytest.approx(0.3)
