"""Student's t against the printed tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.judge.compare.interval import t_quantile, t_within

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
def test_quantiles_are_those_of_the_tables(p: float, df: int, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-7)


@given(p=st.floats(0.51, 0.9999), df=st.integers(1, 300))
def test_the_quantile_inverts_the_distribution_and_shrinks_with_more_degrees(
    p: float, df: int
) -> None:
    assert t_within(t_quantile(p, df), df) == pytest.approx(2 * p - 1, rel=1e-9)
    assert t_quantile(p, df + 1) < t_quantile(p, df)
