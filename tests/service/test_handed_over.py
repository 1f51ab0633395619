"""A failure that is being confirmed, or answered, is not forgotten when its rerun changes hands."""

from __future__ import annotations

from typing import Any

import pytest

from service.conductor.judge import Judging
from service.conductor.leases import LEASE_S, TAKEOVER_AFTER_S, Leases
from tests.service.conftest import Clock, Plane
from tests.service.fake_worker import FakeWorker
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
