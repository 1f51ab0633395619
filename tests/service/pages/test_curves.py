"""A page costs little, however long a run is and however often it is looked at."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from service.pages import curves
from service.pages.curves import (
    MOST_OWN,
    OWN_POINTS,
    POINTS,
    SHARE,
    Curves,
    CurveShelf,
    load_curves,
)
from tests.service.conftest import Clock, Plane
from tests.service.fake_worker import size_of

NO_SESSION: Any = None


def said(steps: range, msg: str = "progress", **more: Any) -> list[str]:
    """Return lines of a program that tells of progress alone, as one that is attached to."""
    head = {"v": 1, "ts": 1.0, "iso": "-", "mono": 1.0, "pid": 1, "rank": 0, "boot": "b"}
    told = {"section": "log", "section_seq": 0, "msg": msg, **more}
    return [json.dumps({**head, **told, "seq": step, "step": step}) for step in steps]


@pytest.mark.parametrize("msg", ["progress", "eval"])
def test_a_run_that_never_says_that_a_step_has_ended_fills_no_page(still: Plane, msg: str) -> None:
    """A million of its lines made a page of 23 MB in 26 s, and took 1.9 GB."""
    still.submit(set={"workload.world_size": 1})
    worker = still.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    have, each = 0, 5_000
    for first in range(0, 20_000, each):
        values = {"loss": 2.0, "toks_per_s": 10.0, "val_loss": 3.0}
        lines = said(range(first, first + each), msg, **values)
        worker.ship(order, {0: lines}, {0: have})
        have += size_of(lines)
    found = still.context.store.read(lambda session: load_curves(session, order.run, 0))
    drawn = [line for line in (*found.loss, *found.speed) if line.points]
    assert len(drawn) == (2 if msg == "progress" else 1)
    for line in drawn:
        assert POINTS / 4 < len(line.points) <= POINTS
        assert line.points[-1][0] >= 20_000 - 20_000 / POINTS * 2, "it goes on to the newest step"
    link = still.call("POST", "/sign-in-links").json()["url"]
    still.http.get(link)
    page = still.http.get(f"/experiments/{order.experiment}")
    assert page.status_code == 200
    assert "<polyline" in page.text
    assert len(page.content) < 100_000


def test_each_of_the_programs_own_metrics_has_a_small_chart(still: Plane) -> None:
    still.submit(set={"workload.world_size": 1})
    worker = still.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    rows = map(json.loads, said(range(1, 301), "metrics"))
    own = {f"m{n:02}": 1.0 for n in range(MOST_OWN)}
    lines = [json.dumps({**row, "user": {"a<b": row["step"], **own}}) for row in rows]
    worker.ship(order, {0: lines})
    found = still.context.store.read(lambda session: load_curves(session, order.run, 300))
    assert [line.name for line in found.own][:2] == ["user/a<b", "user/m00"]
    assert len(found.own) == MOST_OWN
    assert len(found.own[0].points) <= OWN_POINTS
    assert found.own[0].points[-1] == (300, 300.0)
    still.http.get(still.call("POST", "/sign-in-links").json()["url"])
    page = still.http.get(f"/experiments/{order.experiment}")
    assert "<figcaption>user/a&lt;b</figcaption><svg" in page.text
    assert len(page.content) < 100_000


class Loading:
    """Reads curves, which takes so many seconds of a clock."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.clock, self.takes_s, self.times = clock, takes_s, 0

    def __call__(self, session: object, run: str, last_step: int) -> Curves:
        self.times += 1
        self.clock.at += self.takes_s
        return Curves(loss=[], speed=[])


def test_what_has_not_changed_is_not_read_again(clock: Clock) -> None:
    load = Loading(clock, 1.0)
    shelf = CurveShelf(load, clock)
    for _ in range(3):
        shelf.get(NO_SESSION, "run", 7, 1)
        clock.at += 1000.0
    assert load.times == 1


def test_of_a_run_that_goes_on_reading_takes_its_share_of_time_and_no_more(clock: Clock) -> None:
    load = Loading(clock, 2.0)
    shelf, began = CurveShelf(load, clock), clock.at
    for lines in range(500):
        shelf.get(NO_SESSION, "run", lines, 1)
        clock.at += 2.0
    assert load.times >= 20
    assert load.times * load.takes_s <= (clock.at - began) / SHARE + load.takes_s


def test_while_somebody_reads_others_are_shown_what_was_there(clock: Clock) -> None:
    begun, go_on = threading.Event(), threading.Event()
    old, new = (Curves(loss=[], speed=[]) for _ in range(2))

    def load(session: object, run: str, last_step: int) -> Curves:
        if last_step == 1:
            return old
        begun.set()
        assert go_on.wait(20)
        return new

    shelf = CurveShelf(load, clock)
    shelf.get(NO_SESSION, "run", 1, 1)
    first: list[Curves] = []
    reader = threading.Thread(target=lambda: first.append(shelf.get(NO_SESSION, "run", 2, 2)))
    reader.start()
    try:
        assert begun.wait(20)
        assert shelf.get(NO_SESSION, "run", 2, 2) is old
    finally:
        go_on.set()
        reader.join(20)
    assert first == [new]
    assert shelf.get(NO_SESSION, "run", 2, 2) is new


def test_a_failed_look_is_no_curve_and_the_next_one_reads(clock: Clock) -> None:
    answers = iter([ValueError("gone"), Curves(loss=[], speed=[])])

    def load(session: object, run: str, last_step: int) -> Curves:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    shelf = CurveShelf(load, clock)
    with pytest.raises(ValueError, match="gone"):
        shelf.get(NO_SESSION, "run", 1, 1)
    assert shelf.get(NO_SESSION, "run", 1, 1).loss == []


def test_of_many_runs_the_last_ones_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_RUNS", 2)
    load = Loading(clock, 0.0)
    shelf = CurveShelf(load, clock)
    for run in ("a", "b", "a", "c", "a"):
        shelf.get(NO_SESSION, run, 1, 1)
    assert load.times == 3
    shelf.get(NO_SESSION, "b", 1, 1)
    assert load.times == 4
