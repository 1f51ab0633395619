"""What is said against an experiment whose conditions were met since? Nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.decision import Condition, ConditionState, Verdict
from service.report.markdown import build_report
from service.report.view import ReportView
from tests.service.conftest import Plane
from tests.service.fake_worker import beats
from tests.service.report.views import decision, report_view, run_report

PACE = {
    "id": "pace", "metric": "dt_step_s", "aggregate": "median", "over_ranks": "max",
    "pass_below": 0.15, "severity": "conditional",
}  # fmt: skip


@pytest.mark.long
def test_what_was_met_is_no_cause_of_anything_any_more(plane: Plane) -> None:
    sets = {"phases.sanity.gate": [PACE], "phases.sanity.steps": 20}
    experiment, worker = plane.submit(set=sets), plane.worker()
    worker.run_through(plane.next_order(worker))
    order = plane.next_order(worker)
    assert "sanity: criterion pace fail" in plane.experiment(experiment)["cause"]["text"]
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=0.1) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    following = plane.next_order(worker)
    view = plane.experiment(experiment)
    assert [row["state"] for row in view["conditions"]] == ["met"]
    assert view["cause"] is None, "what has come to nothing explains nothing"
    worker.run_through(following)
    for _ in range(2):
        worker.run_through(plane.next_order(worker))
    assert plane.wait_state(experiment, "finished")["verdict"] == "GO"
    report = plane.call("GET", f"/experiments/{experiment}/report").text
    top = report.split("## Phases")[0]
    assert "| cause | 5 of 5 phases passed with GO |" in top
    assert "Look here first" not in top


def told(state: ConditionState, **more: Any) -> ReportView:
    """A phase that needed two attempts and left one condition."""
    left = Condition(id="smoke:pace", text="slow", criterion="pace", state=state)
    second = run_report(decision=decision("CONDITIONAL_GO"))
    told = {"verdict": Verdict.CONDITIONAL_GO, "attempt": 2, "id": "run_2"}
    second = replace(second, view=second.view.model_copy(update=told))
    lost = {"code": "keeper_lost", "actor": "infra"}
    first = run_report(decision=None)
    gone = first.view.model_validate({**first.view.wire(), "outcome": lost, "verdict": None})
    return report_view(replace(first, view=gone), second, conditions=[left], **more)


@pytest.mark.parametrize("state", list(ConditionState))
def test_the_run_to_look_at_first_is_one_that_was_not_made_good(state: ConditionState) -> None:
    met = state is ConditionState.MET
    view = told(state, verdict=Verdict.GO if met else Verdict.CONDITIONAL_GO)
    assert (view.culprit is None) is met
    assert view.is_met("smoke") is met
    assert not view.is_met("sanity"), "it left none"
    assert ("Look here first" in build_report(view)) is not met
