"""Measurements forecast the rest of an experiment."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from gonogo.contract.errors import Rejected
from gonogo.contract.order import Order
from service.db.schema import RunRow
from service.experiments.state import check_labels
from tests.service.conftest import Plane
from tests.service.fake_run import BOOT_TS
from tests.service.fake_worker import FakeWorker, beats


def forecast(plane: Plane, experiment: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.get(f"/experiments/{experiment}/forecast")
    return found


def claimed_before(plane: Plane, order: Order, seconds: float) -> None:
    """Let a run have been claimed so long before its rank's clock begins."""

    def write(session: Session) -> None:
        session.get_one(RunRow, order.run).claimed_at = BOOT_TS - seconds

    plane.context.store.write(write)


def train(plane: Plane, worker: FakeWorker, order: Order, upto: int, step_s: float) -> None:
    worker.start(order)
    lines = {
        rank: beats(order, rank, upto=upto, step_s=step_s, done=False)
        for rank in range(order.world_size)
    }
    worker.ship(order, lines)


def test_the_rest_is_told_while_it_goes_on_with_the_starts_to_come(still: Plane) -> None:
    experiment = still.submit(labels={"claimed_seconds": "60"}, set={"phases.0.steps": 10})
    assert forecast(still, experiment)["basis"] == "nothing measured yet"
    worker = still.worker()
    order = still.next_order(worker)
    claimed_before(still, order, 9.0)
    train(still, worker, order, 5, 2.0)
    ahead = sum(phase.steps for phase in order.phases_after)
    found = forecast(still, experiment)
    starts_s = len(order.phases_after) * (9.0 + 2.0)
    assert found["seconds_p50"] == pytest.approx((5 + ahead) * 2.0 + starts_s)
    assert found["claimed_seconds"] == 60.0


def test_a_run_that_has_ended_leaves_nothing_of_its_phase_before_it_is_judged(still: Plane) -> None:
    experiment = still.submit(set={"phases.0.steps": 10})
    worker = still.worker()
    order = still.next_order(worker)
    claimed_before(still, order, 9.0)
    worker.start(order)
    lines = {rank: beats(order, rank, step_s=2.0) for rank in range(order.world_size)}
    worker.ship(order, lines)
    going = forecast(still, experiment)
    assert worker.end(order, lines).status_code == 200
    assert still.get(f"/experiments/{experiment}")["phases"][0]["state"] == "active"
    found = forecast(still, experiment)
    assert found["seconds_p50"] == going["seconds_p50"]


def test_a_run_that_is_being_stopped_has_no_rest(still: Plane) -> None:
    experiment = still.submit(set={"phases.0.steps": 10}, labels={"claimed_seconds": "60"})
    worker = still.worker()
    order = still.next_order(worker)
    train(still, worker, order, 5, 2.0)
    still.call("POST", f"/experiments/{experiment}/halt", json={"reason": "enough"})
    found = forecast(still, experiment)
    assert (found["basis"], found["claimed_seconds"]) == ("it is being stopped", 60.0)
    assert found["seconds_p50"] is None


def second(plane: Plane, **sets: Any) -> tuple[str, FakeWorker, Order]:
    """An experiment whose second phase has been claimed."""
    experiment = plane.submit(**sets)
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.run_through(order)
    return experiment, worker, plane.next_order(worker)


def test_a_phase_that_begins_goes_on_from_what_the_last_one_measured(plane: Plane) -> None:
    experiment, worker, order = second(plane, set={"phases.0.steps": 10})
    before = forecast(plane, experiment)
    assert before["seconds_p50"] == pytest.approx(
        0.2 * (order.steps + sum(phase.steps for phase in order.phases_after)), rel=1e-3
    )
    train(plane, worker, order, 8, 0.5)
    found = forecast(plane, experiment)
    left = order.steps - 8 + sum(phase.steps for phase in order.phases_after)
    assert found["seconds_p50"] >= 0.2 * left  # half the pace before, half the present one
    assert found["seconds_p90"] >= found["seconds_p50"]


def test_a_label_that_is_to_be_a_number_is_refused_otherwise() -> None:
    name = "claimed_seconds"
    for value in ("soon", "-1", "0", "nan", "inf", ""):
        with pytest.raises(Rejected, match=f"label {name}"):
            check_labels({name: value})
    check_labels({name: "2.5", "other": "soon"})


def test_when_all_is_over_nothing_is_left(plane: Plane) -> None:
    experiment, worker, order = second(plane)
    code = plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
    assert code.status_code == 202, code.text
    worker.end(order, {0: []}, "cancelled", "operator", code=3)
    plane.wait_state(experiment, "finished")
    assert forecast(plane, experiment)["basis"] == "nothing is left"
