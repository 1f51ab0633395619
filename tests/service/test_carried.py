"""What helped in one phase lies over every run of the next: order, report and verdict say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order
from tests.service.conftest import Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker
from tests.service.test_judging import events, stalled
from tests.service.test_origins import fail, offered, refused
from tests.service.test_verbs import fail_halted, verb

FSDP = {"workload": {"parallel": "fsdp"}}
REMEDIED = {"remedies": {"hang_in_compute": FSDP}, "max_remedies": 1}


def cured(plane: Plane, worker: FakeWorker, **more: Any) -> str:
    """An experiment whose first phase has passed with the remedy of its hang."""
    experiment = plane.submit(set={**REMEDIED, **more})
    stalled(plane, worker, plane.next_order(worker))
    patched = plane.next_order(worker)
    assert (patched.reason, patched.carried) == ("remedy", [])
    worker.run_through(patched)
    return experiment


def decisions(plane: Plane, experiment: str, phase: str) -> list[dict[str, Any]]:
    found = plane.get(f"/experiments/{experiment}/decisions")["items"]
    return [row for row in found if row["phase"] == phase and row["kind"] == "auto"]


def is_carried(order: Order) -> bool:
    told = [(row.diagnosis, row.patch, row.since) for row in order.carried]
    assert told in ([], [("hang_in_compute", FSDP, "sanity")])
    assert order.identity.parallel == order.train["parallel"] == ("fsdp" if told else "ddp")
    return bool(told)


def test_the_next_phases_begin_with_what_helped_and_say_so(plane: Plane) -> None:
    worker = plane.worker()
    experiment = cured(plane, worker)
    order = plane.next_order(worker)
    assert (order.phase, order.reason, is_carried(order)) == ("synthetic", "first", True)
    (decided,) = decisions(plane, experiment, "sanity")
    assert decided["reason"] == "sanity passed"
    worker.run_through(order)
    third = plane.next_order(worker)
    assert (third.phase, is_carried(third)) == ("smoke", True)
    (decided,) = decisions(plane, experiment, "synthetic")
    assert decided["verdict"] == "CONDITIONAL_GO"
    assert [row["id"] for row in decided["conditions"]] == ["synthetic:remedy_carried"]
    told = next(row for row in events(plane, experiment) if row["type"] == "phase.carried")
    assert told["phase"] == "synthetic"
    assert told["data"]["text"] == f"the remedy of hang_in_compute from sanity: {FSDP}"


@pytest.mark.parametrize("name", ["resume", "rerun"])
def test_whoever_starts_the_phase_again_keeps_what_helped(plane: Plane, name: str) -> None:
    worker = plane.worker()
    experiment = cured(plane, worker)
    order = plane.next_order(worker)
    worker.start(order)
    verb(plane, experiment, "halt")
    fail_halted(worker, order)
    plane.wait_state(experiment, "awaiting_decision")
    verb(plane, experiment, name)
    again = plane.next_order(worker)
    assert (again.phase, again.reason, is_carried(again)) == ("synthetic", name, True)


@pytest.mark.long
def test_a_phase_that_needed_an_approval_begins_with_what_helped(plane: Plane) -> None:
    worker = plane.worker()
    experiment = cured(plane, worker, **{"phases.sanity.approve": "always"})
    plane.wait_state(experiment, "awaiting_decision")
    verb(plane, experiment, "promote")
    assert is_carried(plane.next_order(worker))


def test_the_same_failure_under_it_ends_the_phase_without_another_try(plane: Plane) -> None:
    worker = plane.worker()
    experiment = cured(plane, worker)
    stalled(plane, worker, plane.next_order(worker))
    plane.wait_state(experiment, "finished")
    (decided,) = decisions(plane, experiment, "synthetic")
    assert decided["verdict"] == "NO_GO"


def test_a_plan_may_want_each_phase_as_it_says(plane: Plane) -> None:
    worker = plane.worker()
    cured(plane, worker, carry_remedies=False)
    assert not is_carried(plane.next_order(worker))


def cured_and_accepted(plane: Plane, worker: FakeWorker) -> str:
    """An experiment whose first phases passed under a remedy that a person accepts; it failed."""
    experiment = cured(plane, worker)
    worker.run_through(plane.next_order(worker))
    fail(worker, plane.next_order(worker))
    for row in plane.wait_state(experiment, "finished")["conditions"]:
        word = {"verdict": "CONDITIONAL_GO", "reason": "known", "condition": row["id"]}
        answer = plane.call("POST", f"/experiments/{experiment}/decisions", json=word)
        assert answer.status_code == 201, answer.text
    return experiment


@pytest.mark.long
def test_what_passed_under_a_remedy_is_taken_over_by_a_plan_that_orders_it_so(plane: Plane) -> None:
    experiment = cured_and_accepted(plane, plane.worker())
    said = refused(plane, f"{experiment}:smoke", set=REMEDIED)
    assert "sanity is ordered otherwise than there (identity.config_digest" in said
    assert "synthetic is ordered otherwise than there" in said
    helped = {"workload.parallel": "fsdp"}
    body = {"plan": "demo", "origin": f"{experiment}:smoke", "set": helped, "dry_run": True}
    answer = plane.call("POST", "/experiments", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "patch",
    [{"train": {"seed": 7}}, {"train": {"optim": {"lr": 0.5}}}],
    ids=["another seed", "another rate"],
)
def test_a_checkpoint_that_a_remedy_made_is_gone_on_from_where_it_is_ordered(
    plane: Plane, tmp_path: Path, patch: dict[str, Any]
) -> None:
    sets = {"remedies": {"hang_in_compute": patch}, "max_remedies": 1, "phases.sanity.steps": 40}
    experiment, worker = plane.submit(set=sets), plane.worker(home=tmp_path)
    stalled(plane, worker, plane.next_order(worker))
    order = plane.next_order(worker)
    save_checkpoint(tmp_path / order.run, step=20)
    fail(worker, order, upto=25)
    plane.wait_state(experiment, "finished")
    assert offered(plane, experiment, set=sets) == f"{experiment}:sanity"
    body: dict[str, Any] = {"plan": "demo", "origin": f"{experiment}:sanity", "dry_run": True}
    plain = plane.call("POST", "/experiments", json={**body, "set": sets})
    assert plain.json()["origin"]["step"] == 0
    assert "without those of a remedy" in refused(plane, f"{experiment}:sanity@20", set=sets)
    helped = {
        **sets,
        **({"train.seed": 7} if "seed" in patch["train"] else {"train.optim.lr": 0.5}),
    }
    as_made = plane.call("POST", "/experiments", json={**body, "set": helped})
    assert as_made.json()["origin"]["step"] == 20
