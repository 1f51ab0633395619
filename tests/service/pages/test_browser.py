"""The pages in a real browser, under their own content security policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import demand
from tests.service.conftest import Plane
from tests.service.fake_worker import beats
from tests.service.pages.browser import Browser, chromium
from tests.service.test_campaigns import run_through, submit

pytestmark = pytest.mark.needs("chromium")
CUT = "[...document.querySelectorAll('.scroll')].filter(r => r.scrollWidth > r.clientWidth)"
"""Rows of a page that are wider than what shows them."""


@pytest.fixture
def tab(plane: Plane, tmp_path: Path) -> Iterator[Browser]:
    with chromium(demand("chromium"), tmp_path / "profile") as browser:
        browser.visit(plane.call("POST", "/sign-in-links").json()["url"], "/")
        yield browser
        assert browser.complaints == []


def test_pages_follow_what_happens_without_being_loaded_again(plane: Plane, tab: Browser) -> None:
    tab.eval("window.loadedOnce = true")
    assert tab.eval("document.querySelectorAll('tbody tr').length") == 0
    experiment = plane.submit(name="lively", set={"phases.sanity.steps": 40})
    tab.wait("document.querySelector('tbody a')?.innerText === 'lively'")
    assert tab.eval("window.loadedOnce") is True
    tab.visit(f"{plane.context.url}/experiments/{experiment}", f"/experiments/{experiment}")
    tab.eval("window.loadedOnce = true")
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    worker.ship(order, {rank: beats(order, rank, upto=20) for rank in range(2)})
    tab.wait("document.querySelector('dd')?.innerText === '20 / 40'")
    assert tab.eval("document.querySelectorAll('polyline').length") >= 2
    plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
    tab.wait("document.querySelector('.headline').innerText.includes('stopping')")
    assert tab.eval("window.loadedOnce") is True


@pytest.mark.long
def test_a_service_that_hangs_is_shown_with_the_age_of_the_page(plane: Plane, tab: Browser) -> None:
    tab.eval("window.answers = window.fetch")
    tab.eval(
        "window.fetch = (url, how) => new Promise((_, fail) =>"
        " how.signal?.addEventListener('abort', () => fail(how.signal.reason)))"
    )
    tab.wait("!document.getElementById('stale').hidden")
    told = tab.eval("document.getElementById('stale').innerText")
    assert re.fullmatch(r"The service does not answer\. This page is \d+ s old\.", told)
    assert tab.eval("document.body.classList.contains('is-stale')") is True
    tab.eval("window.fetch = window.answers")
    tab.wait("document.getElementById('stale').hidden")
    assert tab.eval("document.body.classList.contains('is-stale')") is False


@pytest.mark.long
def test_the_page_of_a_campaign_shows_its_answer_when_it_ends(plane: Plane, tab: Browser) -> None:
    campaign = submit(plane)["id"]
    tab.visit(f"{plane.context.url}/campaigns/{campaign}", f"/campaigns/{campaign}")
    tab.eval("window.loadedOnce = true")
    assert tab.eval("document.querySelector('section[aria-label=Comparison]')") is None
    worker = plane.worker()
    for _ in range(6):
        run_through(worker, plane.next_order(worker), 1.0)
    plane.wait(lambda: plane.get(f"/campaigns/{campaign}")["state"] == "finished", "its end")
    tab.wait("document.querySelector('.headline').innerText.includes('finished')")
    tab.wait("document.querySelectorAll('section[aria-label=Comparison] tbody tr').length === 2")
    assert tab.eval("window.loadedOnce") is True
    resize(tab, 400)
    assert tab.eval(f"{CUT}.length") == 0, "its answers can be read on a telephone"


def resize(tab: Browser, width: int) -> None:
    """Show pages as on a screen of this width."""
    tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )


WORDS = "nav a, .top button, .brand"
LINES = "Math.round(row.getBoundingClientRect().height / parseFloat(style(row).lineHeight))"


def test_a_page_fits_a_telephone_and_a_screen(plane: Plane, tab: Browser) -> None:
    experiment = plane.submit(name="narrow")
    worker = plane.worker()
    worker.run_through(plane.next_order(worker))
    plane.wait(lambda: plane.experiment(experiment)["phases"][0]["verdict"], "a verdict")
    plane.submit(name="with-a-name-that-is-longer-than-a-line-2026-11-21", labels={"owner": "me"})
    devices = tuple(f"GPU-{n}f7c2b1e-9a4d-4e7b-8c55-0d1e2f3a4b5c" for n in range(8))
    plane.worker("gpu1", devices=devices).claim()
    resize(tab, 375)
    run = plane.experiment(experiment)["phases"][0]["runs"][0]
    for path in ("/", f"/experiments/{experiment}?run={run}", "/alerts", "/workers", "/sign-in"):
        tab.visit(f"{plane.context.url}{path}", path.split("?")[0])
        assert tab.eval("document.documentElement.scrollWidth") <= 375, path
        assert tab.eval(f"{CUT}.length") == 0, path
        if path == "/workers":
            assert tab.eval("document.querySelector('tbody td').clientWidth") > 200
    for width in (375, 1280):
        resize(tab, width)
        tab.visit(f"{plane.context.url}/workers", "/workers")
        assert tab.eval("document.documentElement.scrollWidth") <= width
        assert tab.eval(
            f"(style => [...document.querySelectorAll('{WORDS}')].map(row => {LINES}))"
            "(getComputedStyle)"
        ) == [1, 1, 1, 1, 1, 1], "the navigation is whole"


def test_times_are_the_reader_s_own_and_tell_utc_too(plane: Plane, tab: Browser) -> None:
    experiment = plane.submit()
    view = plane.experiment(experiment)
    tab.visit(f"{plane.context.url}/experiments/{experiment}", f"/experiments/{experiment}")
    tab.wait("document.querySelector('time')?.title.endsWith('Z')")
    at = tab.eval("document.querySelector('time').dateTime")
    assert at[:19] == view["created_at"][:19]
    shown = tab.eval("document.querySelector('time').innerText")
    same = "new Date(document.querySelector('time').innerText.replace(' ', 'T')).toISOString()"
    assert "UTC" not in shown
    assert tab.eval(same)[:19] == at[:19]
    assert plane.call("POST", f"/experiments/{experiment}/cancel", json={}).is_success
    plane.wait_state(experiment, "finished")
    tab.visit(f"{plane.context.url}/experiments/{experiment}", f"/experiments/{experiment}")
    assert tab.eval("document.querySelector('time').innerText") == shown, "also of what is over"
