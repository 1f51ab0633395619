"""Curves of a page: every peak of a long run, and each line read once."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.order import Order
from service.charts import Chart
from service.evidence import series
from service.evidence.series import STRETCHES, Curve, load_curves
from service.pages import render
from service.pages.render import MOST_OWN
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker, size_of

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def said(steps: range, msg: str = "progress", **more: Any) -> list[str]:
    """Return lines of a program that reports progress alone, as one that is attached to."""
    head = {"v": 1, "ts": 1.0, "iso": "-", "mono": 1.0, "pid": 1, "rank": 0, "boot": "b"}
    told = {"section": "log", "section_seq": 0, "msg": msg, **more}
    return [json.dumps({**head, **told, "seq": step, "step": step}) for step in steps]


def begun(plane: Plane) -> tuple[FakeWorker, Order]:
    plane.submit(set={"workload.world_size": 1})
    worker = plane.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    return worker, order


def charts_of(plane: Plane, order: Order) -> list[Chart]:
    return plane.context.store.read(
        lambda session: render.charts_of(load_curves(session, order.run))
    )


@given(st.lists(FLOATS, min_size=1, max_size=2000))
def test_a_curve_keeps_its_extremes_and_few_points(values: list[float]) -> None:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    points = curve.points
    assert len(points) <= 2 * STRETCHES
    assert [step for step, _ in points] == sorted(step for step, _ in points)
    assert all(values[int(step)] == value for step, value in points)
    drawn = [value for _, value in points]
    assert (min(drawn), max(drawn)) == (min(values), max(values))


def test_spikes_of_one_step_and_the_first_nan_of_a_long_run_are_shown(still: Plane) -> None:
    worker, order = begun(still)
    spikes = {3_001, 9_998, 14_003}
    lines = said(range(20_000), loss=2.0, toks_per_s=10.0)
    for step in spikes:
        lines[step] = lines[step].replace('"loss": 2.0', '"loss": 3.7')
    lines[19_000:] = said(range(19_000, 20_000), loss="NaN", toks_per_s=10.0)
    have = 0
    for first in range(0, 20_000, 5_000):
        worker.ship(order, {0: lines[first : first + 5_000]}, {0: have})
        have += size_of(lines[first : first + 5_000])
    loss, speed = charts_of(still, order)
    drawn = loss.lines[0].points
    assert {step for step, value in drawn if value == 3.7} == spikes
    assert len(drawn) <= 2 * STRETCHES
    assert [mark.text for mark in loss.marks] == ["not finite from step 19000"]
    assert speed.lines[0].points[-1][0] >= 19_900
    still.http.get(still.call("POST", "/sign-in-links").json()["url"])
    page = still.http.get(f"/experiments/{order.experiment}")
    assert "not finite from step 19000" in page.text
    assert len(page.content) < 100_000


def test_each_line_is_read_once(still: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, order = begun(still)
    first, second = said(range(1, 11), loss=2.0), said(range(11, 13), "eval", val_loss=1.5)
    worker.ship(order, {0: first})
    charts_of(still, order)
    read: list[str] = []
    parse = series.beat_on
    monkeypatch.setattr(
        series, "beat_on", lambda text, rank: read.append(text) or parse(text, rank)
    )
    worker.ship(order, {0: second}, {0: size_of(first)})
    loss = charts_of(still, order)[0]
    assert read == second
    assert [line.name for line in loss.lines] == ["loss", "validation loss"]
    assert loss.lines[1].points == [(11.0, 1.5), (12.0, 1.5)]


def test_each_of_the_programs_own_metrics_has_a_chart(still: Plane) -> None:
    worker, order = begun(still)
    rows = map(json.loads, said(range(1, 301), "metrics"))
    own = {f"m{n:02}": 1.0 for n in range(MOST_OWN)}
    lines = [json.dumps({**row, "user": {"a<b": row["step"], **own}}) for row in rows]
    worker.ship(order, {0: [*lines, "{", '["metrics"]', '{"msg": "metrics"}']})
    found = charts_of(still, order)[2:]
    assert [chart.title for chart in found][:2] == ["user/a<b", "user/m00"]
    assert len(found) == MOST_OWN
    assert found[0].lines[0].points[-1] == (300.0, 300.0)


def test_a_value_that_is_no_number_moves_no_curve() -> None:
    curve = Curve()
    for step, value in ((5, math.inf), (3, math.nan), (4, 1.0)):
        curve.add(step, value)
    assert (curve.non_finite, curve.points) == (3, [(4.0, 1.0)])
