"""Approvals are conditions: a person gives them in time, or the clock ends them, on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.ledger.recorded import load_decision, record_of
from gonogo.ledger.replay import ReplayResult, Surroundings, replay_decision
from gonogo.ledger.sign import trusting
from gonogo.planning.source import bundled_plan
from gonogo.signing import load_public_key
from service.conductor.conductor import expire_approvals
from service.conductor.judge import Judging
from tests.service.conftest import Clock, Plane

APPROVAL = "sanity:approval/synthetic"
LIMIT_S = 3600.0


@pytest.fixture
def wall() -> Clock:
    """The wall clock of the service."""
    clock = Clock()
    clock.at = 1_700_000_000.0
    return clock


@pytest.fixture
def asking(still: Plane, wall: Clock) -> tuple[Plane, str]:
    """An experiment whose first phase passed, and whose second waits for an approval."""
    still.context.now = wall
    return still, awaiting(still, approve_expires_s=LIMIT_S)


def awaiting(plane: Plane, **sets: Any) -> str:
    plan = bundled_plan("demo")
    two = {**plan, "phases": plan["phases"][:2]}
    experiment = plane.submit(two, set={"phases.sanity.approve": "always", **sets})
    worker = plane.worker()
    order = worker.claim()
    assert order is not None
    worker.run_through(order)
    judging = Judging(plane.context)
    judging.settle()
    judging.close()
    assert plane.experiment(experiment)["state"] == "awaiting_decision"
    return experiment


def ask(plane: Plane, experiment: str, verb: str, **body: Any) -> Any:
    return plane.call("POST", f"/experiments/{experiment}/{verb}", json=body)


def replayed(plane: Plane, experiment: str) -> tuple[dict[str, Any], ReplayResult]:
    """The last decision of the experiment, and what replaying it with its siblings comes to."""
    rows = plane.get(f"/experiments/{experiment}/decisions")["items"]
    chain = [record_of(row) for row in rows]
    recorded = chain[-1]
    key = load_public_key(plane.home / "signing.pub")
    around = Surroundings(siblings=chain[:-1], trust=trusting([key]))
    return dict(recorded.document), replay_decision(recorded, around)


def test_an_approval_that_is_awaited_is_an_open_condition_with_its_time(
    asking: tuple[Plane, str],
) -> None:
    plane, experiment = asking
    view = plane.experiment(experiment)
    (condition,) = view["conditions"]
    assert (condition["id"], condition["state"], condition["due"]) == (
        APPROVAL, "open", "synthetic",
    )  # fmt: skip
    assert view["waiting_until"].startswith("2023-11-14T23:13:20")
    assert view["verdict"] == "GO"
    assert view["next"][0]["command"] == f"gonogo promote {experiment} --reason WHY"
    (alert,) = (row for row in plane.get("/alerts")["items"] if row["type"] == "approval.asked")
    assert alert["experiment"] == experiment
    assert ", sanity: " in alert["text"]
    assert "waits for an approval: " in alert["text"]
    assert "It is taken until 2023-11-14T23:13:20" in alert["text"]
    assert alert["text"].endswith(f"Next: gonogo promote {experiment} --reason WHY")
    for verdict, condition, status, said in (
        ("CONDITIONAL_GO", APPROVAL, 409, f"gonogo promote {experiment} --reason WHY"),
        ("CONDITIONAL_GO", "sanity:other", 404, "sanity:other"),
        ("NO_GO", "sanity:other", 422, "NO_GO waives no condition; say CONDITIONAL_GO"),
    ):
        body = {"verdict": verdict, "reason": "so", "condition": condition}
        refused = ask(plane, experiment, "decisions", **body)
        assert refused.status_code == status, "it is given, and not waived"
        assert said in refused.json()["detail"]


def test_an_approval_in_time_is_recorded_with_its_clock_and_replays(
    asking: tuple[Plane, str], wall: Clock
) -> None:
    plane, experiment = asking
    wall.at += LIMIT_S - 1
    expire_approvals(plane.context)
    assert ask(plane, experiment, "promote", reason="looked at it").status_code == 202
    order = plane.worker().claim()
    assert order is not None
    assert order.phase == "synthetic"
    decision, found = replayed(plane, experiment)
    assert (decision["kind"], decision["actor"]) == ("condition", "local admin")
    assert decision["reason"] == "looked at it"
    assert found.equal, found.text
    (condition,) = plane.experiment(experiment)["conditions"]
    assert condition["state"] == "met"
    assert plane.experiment(experiment)["overrides"] == []
    types = [row["type"] for row in plane.get("/alerts")["items"]]
    assert types.count("approval.asked") == 1, "who is asked hears of it once"


def test_an_approval_that_nobody_gave_expires_on_record_and_starts_nothing(
    asking: tuple[Plane, str], wall: Clock
) -> None:
    plane, experiment = asking
    wall.at += LIMIT_S
    refused = ask(plane, experiment, "promote", reason="sorry")
    assert refused.status_code == 409, "too late, even before the conductor looked"
    assert refused.json()["allowed"] == ["override", "cancel"]
    expire_approvals(plane.context)
    expire_approvals(plane.context)
    assert ask(plane, experiment, "promote").status_code == 409
    view = plane.experiment(experiment)
    assert (view["state"], view["verdict"]) == ("awaiting_decision", "INCONCLUSIVE")
    assert view["waiting_for"] == "a decision: nobody approved synthetic within 3600 s"
    assert view["waiting_until"] is None
    assert plane.worker().claim() is None
    decision, found = replayed(plane, experiment)
    assert (decision["seq"], decision["actor"]) == (2, "gonogo")
    assert decision["conditions"][0]["state"] == "missed"
    assert found.equal, found.text
    path = plane.home / "decisions" / f"{decision['id']}.json"
    plane.wait(path.exists, "the decision's file")
    saved = load_decision(path)
    assert saved.document == decision
    texts = [row["text"] for row in plane.get("/alerts")["items"]]
    assert any("nobody approved synthetic within 3600 s" in text for text in texts)


@pytest.mark.long
def test_after_it_expired_a_person_can_go_on_by_hand_and_it_is_shown_so(
    asking: tuple[Plane, str], wall: Clock
) -> None:
    plane, experiment = asking
    wall.at += LIMIT_S
    expire_approvals(plane.context)
    answer = ask(plane, experiment, "decisions", verdict="GO", reason="back from holiday")
    assert answer.status_code == 201, answer.text
    worker = plane.worker()
    order = worker.claim()
    assert order is not None
    assert order.phase == "synthetic"
    view = plane.experiment(experiment)
    assert [row["state"] for row in view["conditions"]] == ["waived"]
    assert [(row["phase"], row["evidence"]) for row in view["overrides"]] == [("sanity", "GO")]
    worker.run_through(order)
    judging = Judging(plane.context)
    judging.settle()
    judging.close()
    assert plane.experiment(experiment)["verdict"] == "GO"


def test_without_a_time_it_is_waited_for_ever(still: Plane, wall: Clock) -> None:
    still.context.now = wall
    experiment = awaiting(still)
    wall.at += 1e9
    expire_approvals(still.context)
    view = still.experiment(experiment)
    assert (view["state"], view["verdict"], view["waiting_until"]) == (
        "awaiting_decision", "GO", None,
    )  # fmt: skip
    assert ask(still, experiment, "promote").status_code == 202


def test_a_condition_that_was_due_and_not_met_is_recorded_with_what_measured_it(
    still: Plane, tmp_path: Path
) -> None:
    plan = bundled_plan("demo")
    gate = [{"id": "fast", "metric": "toks_per_s", "pass_above": 1e9, "severity": "conditional",
             "evidence_from": "synthetic", "due": "smoke"}]  # fmt: skip
    three = {**plan, "phases": [{**plan["phases"][0], "gate": gate}, *plan["phases"][1:3]]}
    experiment = still.submit(three)
    worker = still.worker(home=tmp_path / "runs")
    judging = Judging(still.context)
    for _ in range(2):
        order = still.next_order(worker)
        worker.run_through(order)
        judging.settle()
    judging.close()
    view = still.experiment(experiment)
    assert (view["state"], view["verdict"]) == ("finished", "NO_GO")
    assert view["summary"].endswith("smoke never ran.")
    decision, found = replayed(still, experiment)
    assert decision["conditions"][0]["state"] == "missed"
    assert found.equal, found.text


def test_a_go_by_hand_does_not_end_what_it_means_to_go_on_with(still: Plane) -> None:
    plan = bundled_plan("demo")
    gate = [{"id": "fast", "metric": "toks_per_s", "pass_above": 1e9, "severity": "conditional",
             "evidence_from": "synthetic", "due": "smoke"}]  # fmt: skip
    three = {**plan, "phases": [{**plan["phases"][0], "gate": gate}, *plan["phases"][1:3]]}
    experiment = still.submit(three)
    worker = still.worker()
    judging = Judging(still.context)
    order = still.next_order(worker)
    worker.run_through(order)
    judging.settle()
    ask(still, experiment, "halt")
    judging.settle()
    judging.close()
    assert still.experiment(experiment)["state"] == "awaiting_decision"
    body = {"verdict": "GO", "reason": "seen enough"}
    refused = ask(still, experiment, "decisions", **body)
    assert refused.status_code == 409
    command = f"gonogo override {experiment} CONDITIONAL_GO --condition sanity:fast --reason WHY"
    assert command in refused.json()["detail"]
    assert command in [row["command"] for row in still.experiment(experiment)["next"]]
    ask(still, experiment, "decisions", **body, condition="sanity:fast")
    assert ask(still, experiment, "decisions", **body).status_code == 201
    order = still.next_order(worker)
    assert order.phase == "smoke"
