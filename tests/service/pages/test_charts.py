"""Is a curve drawn to scale, whatever the numbers are?"""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.pages.charts import (
    BOTTOM,
    GAP,
    HEIGHT,
    LETTER,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    left_of,
    line_chart,
    nice_ticks,
)

NUMBERS = st.floats(-1e9, 1e9)


def corners(svg: str) -> list[tuple[float, float]]:
    path = re.search(r'points="([^"]*)"', svg)
    assert path is not None
    return [(float(x), float(y)) for x, y in (p.split(",") for p in path.group(1).split())]


def test_the_lowest_and_the_highest_value_touch_their_grid() -> None:
    svg = line_chart("Loss", [Line(name="loss", points=[(1, 0.0), (11, 4.0)])])
    assert corners(svg) == [(left_of("01234"), HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]
    assert "step 1<" in svg
    assert "step 11<" in svg


@given(st.lists(st.tuples(st.integers(0, 10**6), NUMBERS), min_size=2, max_size=30))
def test_every_curve_is_well_formed_and_stays_inside(points: list[tuple[int, float]]) -> None:
    svg = line_chart('"><script>', [Line(name="<b>", points=points)], unit="&")
    assert ElementTree.fromstring(svg).tag == "svg"
    marks = re.findall(r'x="([\d.]+)" y="[^"]*" text-anchor="end" dy="4">([^<]*)<', svg)
    assert marks
    for at, text in marks:
        assert float(at) >= LETTER * len(text), "no number is cut where the page is narrow"
    for x, y in corners(svg):
        assert float(marks[0][0]) + GAP - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_what_is_not_finite_is_left_out() -> None:
    svg = line_chart("Loss", [Line(name="loss", points=[(1, 1.0), (2, math.nan), (3, 2.0)])])
    assert len(corners(svg)) == 2


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, math.nan), (2, math.inf)]])
def test_no_curve_is_said(points: list[tuple[int, float]]) -> None:
    assert "No curve yet" in line_chart("Loss", [Line(name="loss", points=points)])
    over = line_chart("Loss", [Line(name="loss", points=points)], over=True)
    assert over == '<p class="quiet">No curve: fewer than two values came.</p>'


@given(NUMBERS, NUMBERS)
def test_bounds_enclose_the_values_with_few_ticks(one: float, other: float) -> None:
    low, high = sorted((one, other))
    first, last, ticks = nice_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert first <= low + slack
    assert last >= high - slack
    assert 2 <= len(ticks) <= 8
