"""Charts to scale, whatever the numbers are, and the charts of a report."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.watch import Watch
from service.charts import (
    BOTTOM,
    GAP,
    HEIGHT,
    LETTER,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Line,
    Mark,
    draw,
    nice_ticks,
    non_finite_mark,
    svg_file,
)
from service.report.view import (
    MAX_RANKS,
    RankNumbers,
    RunReport,
    build_series,
    overview,
    phase_pictures,
    spread_out,
)
from tests.service.fake_worker import beats
from tests.service.report.views import (
    attempt,
    halt_finding,
    numbers_of,
    order_of,
    report_view,
    run_report,
)

NUMBERS = st.floats(-1e9, 1e9)


def chart(*points: tuple[float, float], title: str = "loss") -> Chart:
    return Chart(title=title, lines=[Line(name="loss", points=points)])


def corners(svg: str) -> list[tuple[float, float]]:
    path = re.search(r'points="([^"]*)"', svg)
    assert path is not None
    return [(float(x), float(y)) for x, y in (p.split(",") for p in path.group(1).split())]


def test_the_lowest_and_the_highest_value_touch_their_grid() -> None:
    svg = draw(chart((1, 0.0), (11, 4.0)))
    assert corners(svg) == [(GAP + LETTER * 4, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]
    assert ">step 1<" in svg
    assert ">step 11<" in svg


@given(st.lists(st.tuples(st.integers(0, 10**6), NUMBERS), min_size=2, max_size=30))
def test_every_chart_is_well_formed_and_stays_inside(points: list[tuple[int, float]]) -> None:
    lines = [Line(name="<b>", points=points, kind=kind) for kind in "ab"]
    marks = [Mark(step=points[0][0], text="&")]
    svg = draw(Chart(title='"><script>', lines=lines, marks=marks))
    assert ElementTree.fromstring(svg).tag == "svg"
    assert ElementTree.fromstring(svg_file(svg)).tag == "{http://www.w3.org/2000/svg}svg"
    for at, text in re.findall(r'x="([\d.]+)" y="[^"]*" text-anchor="end" dy="4">([^<]*)<', svg):
        assert float(at) >= LETTER * len(text), "no number is cut where the page is narrow"
    for x, y in corners(svg):
        assert GAP <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_a_curve_that_ends_in_nan_says_where() -> None:
    curve = chart((1, 1.0), (2, 2.0), (3, math.nan))
    svg = draw(replace(curve, marks=[non_finite_mark(3)]))
    assert len(corners(svg)) == 2
    assert svg.count("not finite from step 3") == 2, "in the chart and in its description"


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, math.nan), (2, math.inf)]])
def test_no_curve_is_a_sentence(points: list[tuple[int, float]]) -> None:
    assert "No curve." in draw(chart(*points))


@given(NUMBERS, NUMBERS)
def test_bounds_enclose_the_values_with_few_ticks(one: float, other: float) -> None:
    low, high = sorted((one, other))
    first, last, ticks = nice_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert first <= low + slack
    assert last >= high - slack
    assert 2 <= len(ticks) <= 8


def charts_of(*runs: RunReport) -> dict[str, Chart]:
    return {row.name: row.chart for row in phase_pictures(report_view(*runs), "smoke")}


def names(found: Chart) -> list[str]:
    return [line.name for line in found.lines]


def test_a_phase_has_a_chart_for_everything_that_was_reported() -> None:
    assert list(charts_of(run_report())) == [
        "smoke-loss", "smoke-speed", "smoke-steps", "smoke-sections",
    ]  # fmt: skip
    more = ("host_mb", "device_mb", "util", "gate_entropy", "gate_max")
    told = {name: build_series(dict.fromkeys(range(1, 41), 500.0)) for name in more}
    run = run_report()
    ranks = tuple(replace(rank, series={**rank.series, **told}) for rank in run.ranks)
    found = charts_of(replace(run, ranks=ranks))
    assert found.keys() >= {"smoke-host", "smoke-device", "smoke-util", "smoke-gates"}
    assert found["smoke-device"].lines[1].points[0] == (1, 0.5)


def test_attempts_are_lines_of_their_own_with_a_mark_where_one_resumed() -> None:
    resumed = attempt(2, after="run_1", step=20)
    point = resumed.order.resume_from if resumed.order else None
    view = resumed.view.model_copy(update={"resume_from": point})
    found = charts_of(attempt(1, upto=30), replace(resumed, view=view))
    loss = found["smoke-loss"]
    assert names(loss)[::2] == ["loss, attempt 1", "loss, attempt 2"]
    assert [row.text for row in loss.marks] == ["smoke, attempt 2 from step 21"]
    assert [step for step, _ in loss.lines[2].points] == list(range(21, 41))
    speed = found["smoke-speed"]
    assert names(speed) == ["rank 0", "rank 1"]
    assert dict(speed.lines[1].points)[21] == pytest.approx(5_120, rel=1e-5)


def test_floor_halt_and_nan_stand_in_the_charts() -> None:
    order = order_of()
    watch = Watch.model_validate({"slow": {"floor_tok_s": 45.0}})
    rows = [json.loads(line) for line in beats(order, 0)]
    next(row for row in rows if row["msg"] == "progress" and row["step"] == 40)["loss"] = "NaN"
    (rank,) = numbers_of(order, {0: [json.dumps(row) for row in rows]})
    assert math.isnan(rank.series["loss"].last)
    assert rank.series["loss"].count == 40
    halted = run_report(
        order.model_copy(update={"watch": watch}), findings=(halt_finding(),), ranks=(rank,)
    )
    found = charts_of(halted)
    assert names(found["smoke-speed"]) == ["rank 0", "floor 45"]
    assert [row.text for row in found["smoke-loss"].marks] == [
        "stall at step 12", "not finite from step 40",
    ]  # fmt: skip


def test_one_step_is_no_curve() -> None:
    assert phase_pictures(report_view(run_report(order_of("sanity"))), "sanity") == []
    assert overview(report_view(run_report(ranks=()))) is None


def test_phases_follow_each_other_in_the_overview() -> None:
    view = report_view(run_report(order_of("sanity")), attempt(1, upto=30))
    found = overview(view)
    assert found is not None
    assert names(found.chart) == ["sanity", "smoke"]
    assert [step for step, _ in found.chart.lines[1].points] == list(range(2, 32))


def test_many_ranks_are_shown_by_some_from_the_lowest_to_the_highest() -> None:
    ranks = [
        RankNumbers(rank=n, last_step=1, series={"x": build_series({1: 100.0 - n})})
        for n in range(64)
    ]
    kept = spread_out(ranks, "x")
    assert (len(kept), kept[0].rank, kept[-1].rank) == (MAX_RANKS, 63, 0)
    assert spread_out(ranks[:3], "x") == ranks[:3]
