"""Does a finished experiment get its report without being asked, once, and anew when re-decided?"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from service.evidence.artifacts import LOOKS, _turn
from service.report.keeping import SETTLE_S, Reports
from tests.service.conftest import Plane


def cancelled(plane: Plane) -> str:
    experiment = plane.submit()
    plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
    plane.wait_state(experiment, "finished")
    return experiment


def report_of(plane: Plane, experiment: str) -> Path:
    return plane.home / "reports" / experiment / "report.md"


def test_a_finished_experiment_gets_its_report_after_a_moment(plane: Plane) -> None:
    experiment = cancelled(plane)
    going_on = plane.submit()
    now = plane.context.now()
    reports = Reports(plane.context)
    plane.context.now = lambda: now
    reports.run_once()
    assert not report_of(plane, experiment).exists()
    plane.context.now = lambda: now + SETTLE_S + 1
    reports.run_once()
    assert report_of(plane, experiment).read_text().startswith("# no verdict: ")
    assert not report_of(plane, going_on).exists()


def test_it_is_written_once_until_something_is_decided(plane: Plane) -> None:
    experiment = cancelled(plane)
    now = plane.context.now()
    plane.context.now = lambda: now + SETTLE_S + 1
    reports = Reports(plane.context)
    reports.run_once()
    report_of(plane, experiment).write_text("mine")
    reports.run_once()
    Reports(plane.context).run_once()
    assert report_of(plane, experiment).read_text() == "mine"
    plane.context.now = lambda: now + 100
    body = {"verdict": "GO", "reason": "seen by eye"}
    answer = plane.call("POST", f"/experiments/{experiment}/decisions", json=body)
    assert answer.status_code in (200, 201, 202), answer.text
    plane.context.now = lambda: now + 100 + SETTLE_S + 1
    reports.run_once()
    assert "seen by eye" in report_of(plane, experiment).read_text()


def test_a_report_that_cannot_be_written_while_run_directories_hang_is_written_later(
    plane: Plane,
) -> None:
    experiment = cancelled(plane)
    now = plane.context.now()
    plane.context.now = lambda: now + SETTLE_S + 1
    reports = Reports(plane.context)
    with ExitStack() as hanging:
        for _ in range(LOOKS):
            hanging.enter_context(_turn())
        reports.run_once()
        assert not report_of(plane, experiment).exists()
    reports.run_once()
    assert report_of(plane, experiment).exists()
