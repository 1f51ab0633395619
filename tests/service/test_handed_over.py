"""A failure that is being confirmed, or answered, is not forgotten when its rerun changes hands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order
from service.conductor.judge import Judging
from service.conductor.leases import LEASE_S, TAKEOVER_AFTER_S, Leases
from tests.service.conftest import Clock, Plane
from tests.service.fake_run import save_checkpoint
from tests.service.fake_worker import FakeWorker, beats
from tests.service.test_judging import stalled
from tests.service.test_verbs import fail_halted, verb

CONFIRMED = {"confirm": {"on": ["stall"], "variants": []}}
FSDP = {"workload": {"parallel": "fsdp"}}


def confirming(plane: Plane, worker: FakeWorker, **more: Any) -> tuple[str, Any]:
    """A phase that stalled, whose unchanged rerun is under way."""
    experiment = plane.submit(set={**CONFIRMED, **more})
    stalled(plane, worker, plane.next_order(worker))
    again = plane.next_order(worker)
    assert again.reason == "confirm"
    worker.start(again)
    return experiment, again


def concluded(plane: Plane, experiment: str) -> dict[str, Any]:
    """The decision on the phase, once the next one has begun."""
    plane.wait(lambda: plane.experiment(experiment)["phases"][1]["state"] == "active", "phase 2")
    found = plane.get(f"/experiments/{experiment}/decisions")["items"]
    return next(row for row in reversed(found) if row["kind"] == "auto")


def assert_not_forgotten(plane: Plane, experiment: str) -> None:
    decision = concluded(plane, experiment)
    assert decision["verdict"] == "CONDITIONAL_GO"
    assert [row["id"] for row in decision["conditions"]] == ["sanity:reproduced"]


@pytest.mark.parametrize("name", ["resume", "rerun"])
def test_a_person_who_halts_the_confirmation_does_not_turn_its_failure_into_go(
    plane: Plane, name: str
) -> None:
    worker = plane.worker()
    experiment, again = confirming(plane, worker)
    verb(plane, experiment, "halt")
    fail_halted(worker, again)
    plane.wait_state(experiment, "awaiting_decision")
    assert verb(plane, experiment, name).status_code == 202
    assert verb(plane, experiment, name).status_code == 200
    worker.run_through(plane.next_order(worker))
    assert_not_forgotten(plane, experiment)


@pytest.mark.long
def test_a_confirmation_that_is_taken_over_stays_one(plane: Plane) -> None:
    worker = plane.worker()
    experiment, _ = confirming(plane, worker)
    assert verb(plane, experiment, "takeover").status_code == 202
    assert verb(plane, experiment, "takeover").status_code == 200
    other = plane.worker(name="w2", host="host-2")
    order = plane.next_order(other)
    assert (order.reason, order.attempt) == ("confirm", 3)
    other.run_through(order)
    assert_not_forgotten(plane, experiment)


def test_a_confirmation_whose_host_is_isolated_for_too_long_stays_one(
    still: Plane, clock: Clock
) -> None:
    worker, judging, leases = still.worker(), Judging(still.context), Leases(still.context)
    still.submit(set={**CONFIRMED, "limits.isolated_limit_s": 300})
    stalled(still, worker, still.next_order(worker))
    judging.settle()
    judging.close()
    worker.start(still.next_order(worker))
    for wait_s in (LEASE_S + 1, 300 + TAKEOVER_AFTER_S, 0):
        leases.run_once()
        clock.at += wait_s
    order = still.next_order(worker)
    assert (order.reason, order.attempt) == ("confirm", 3)


def test_a_confirmation_from_step_1_is_taken_over_at_step_1(plane: Plane, tmp_path: Path) -> None:
    """What the run that failed has saved is not for it, where it has saved nothing itself yet."""
    worker = plane.worker(home=tmp_path / "runs")
    experiment = plane.submit(set=CONFIRMED)
    first = plane.next_order(worker)
    save_checkpoint(tmp_path / "runs" / first.run, step=2)
    stalled(plane, worker, first)
    again = plane.next_order(worker)
    assert (again.reason, again.resume_from) == ("confirm", None)
    verb(plane, experiment, "takeover")
    order = plane.next_order(plane.worker(name="w2", host="host-2", home=tmp_path / "others"))
    assert (order.reason, order.attempt, order.resume_from) == ("confirm", 3, None)


def test_a_remedy_that_is_halted_goes_on_with_its_patch(plane: Plane) -> None:
    more = {"remedies": {"hang_in_compute": FSDP}, "max_remedies": 1}
    experiment = plane.submit(set=more)
    worker = plane.worker()
    stalled(plane, worker, plane.next_order(worker))
    patched = plane.next_order(worker)
    assert (patched.reason, patched.identity.parallel) == ("remedy", "fsdp")
    worker.start(patched)
    verb(plane, experiment, "halt")
    fail_halted(worker, patched)
    plane.wait_state(experiment, "awaiting_decision")
    verb(plane, experiment, "resume")
    order = plane.next_order(worker)
    assert (order.reason, order.identity.parallel) == ("remedy", "fsdp")
    worker.run_through(order)
    decision = concluded(plane, experiment)
    assert decision["verdict"] == "CONDITIONAL_GO"
    assert [row["id"] for row in decision["conditions"]] == ["sanity:remedied"]


@pytest.mark.long
def test_without_its_patch_nothing_goes_on_from_what_a_remedy_has_saved(
    plane: Plane, tmp_path: Path
) -> None:
    """It would pass as if the phase had never been changed."""
    experiment = plane.submit(set={"remedies": {"hang_in_compute": FSDP}, "max_remedies": 1})
    worker = plane.worker(home=tmp_path / "runs")
    stalled(plane, worker, plane.next_order(worker))
    patched = plane.next_order(worker)
    worker.start(patched)
    save_checkpoint(tmp_path / "runs" / patched.run, step=2)
    verb(plane, experiment, "halt")
    fail_halted(worker, patched)
    plane.wait_state(experiment, "awaiting_decision")
    verb(plane, experiment, "rerun")
    verb(plane, experiment, "halt")
    plane.wait_state(experiment, "awaiting_decision")
    verb(plane, experiment, "resume")
    order = plane.next_order(worker)
    assert (order.reason, order.identity.parallel, order.resume_from) == ("resume", "ddp", None)


FAST = {
    "id": "fast", "metric": "dt_step_s", "aggregate": "max", "pass_below": 0.3,
    "severity": "conditional",
}  # fmt: skip


@dataclass(frozen=True)
class HalfConfirmed:
    """A phase of 200 steps that stalled at step 9, and whose rerun is over after step 59."""

    plane: Plane
    worker: FakeWorker
    experiment: str
    answered: Order
    """The rerun's order: it saved step 40, and each of its steps took half a second."""

    def ran(self, order: Order, step_s: float) -> None:
        """A run of an order to its end."""
        self.worker.start(order)
        ranks = range(order.world_size)
        lines = {rank: beats(order, rank, step_s=step_s) for rank in ranks}
        self.worker.ship(order, lines)
        self.worker.end(order, lines)


def half_confirmed(plane: Plane, home: Path, gated: str) -> HalfConfirmed:
    """An experiment of which one phase has the gate `FAST`."""
    worker = plane.worker(home=home)
    sets = {**CONFIRMED, f"phases.{gated}.gate": [FAST], "phases.synthetic.steps": 200}
    experiment = plane.submit(set=sets)
    first = plane.next_order(worker)
    found = HalfConfirmed(plane, worker, experiment, first)
    found.ran(first, 0.5)
    first = plane.next_order(worker)
    save_checkpoint(home / first.run, step=5)
    worker.start(first)
    finding = {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "at": 1.0,
        "key": f"{first.run}:stall", "text": "rank 1 stands in backward", "step": 9,
    }  # fmt: skip
    worker.report(first, finding)
    lines = {rank: beats(first, rank, upto=9, done=False) for rank in range(first.world_size)}
    worker.ship(first, lines)
    worker.end(first, lines, "stalled", "watchdog", findings=1, code=None)
    again = plane.next_order(worker)
    assert (again.phase, again.steps) == ("synthetic", 59)
    save_checkpoint(home / again.run, step=40)
    found.ran(again, 0.5)
    return replace(found, answered=again)
