"""The time of a run, shown on pages and in REST."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from gonogo.contract.order import Order
from service.db.schema import RunRow
from service.views.rows import load_accounts
from tests.service.conftest import Plane
from tests.service.fake_worker import BOOT_TS, beats, size_of

STEP_S = 2.0


def move(plane: Plane, order: Order, **columns: Any) -> None:
    """Let a run have another lifecycle than it had."""

    def work(session: Session) -> None:
        row = session.get_one(RunRow, order.run)
        for name, value in columns.items():
            setattr(row, name, value)

    plane.context.store.write(work)


def account(plane: Plane, order: Order, now: float) -> dict[str, float]:
    found = plane.context.store.read(lambda session: load_accounts(session, order.experiment, now))[
        -1
    ]
    assert found.row.id == order.run
    assert sum(found.seconds.values()) == pytest.approx(now - found.opened_at, abs=0.01)
    return {part.value: value for part, value in found.seconds.items() if value}


def test_a_living_run_is_accounted_for_from_its_lines(still: Plane) -> None:
    _, order, _ = begin(still)
    assert account(still, order, BOOT_TS + 30.0) == {
        "queue": 10.0, "start": 5.0, "productive": 24.0, "unknown": 6.0,
    }  # fmt: skip


def begin(plane: Plane) -> tuple[Any, Order, list[str]]:
    """The first run of an experiment, claimed long ago, and the steps that it has made since."""
    plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    order = order.model_copy(update={"steps": 12})
    lines = beats(order, 0, step_s=STEP_S, done=False)
    worker.ship(order, {0: lines})
    move(plane, order, claimed_at=BOOT_TS - 5.0, created_at=BOOT_TS - 15.0)
    return worker, order, lines


def test_what_a_scheduler_let_a_run_wait_is_queue_and_holds_no_device(still: Plane) -> None:
    still.submit()
    worker = still.worker()
    order = still.next_order(worker, engine="slurm")
    worker.state(order, "check")
    now = still.context.now()
    move(still, order, created_at=now - 4000.0, claimed_at=now - 3600.0)
    waits = {order.run: "Slurm: PENDING, Priority"}
    for told in (waits, {}):
        worker.claim(engine="slurm", free=[], active=[order.run], waits=told)
    found = account(still, order, now + 60.0)
    assert found == {"queue": pytest.approx(4000.0, abs=30.0), "start": pytest.approx(60, abs=30)}


def test_an_account_is_read_on_from_where_it_ended(still: Plane) -> None:
    worker, order, lines = begin(still)
    assert account(still, order, BOOT_TS + 35.0)["productive"] == 12 * STEP_S
    more = beats(order.model_copy(update={"steps": 15}), 0, step_s=STEP_S)
    worker.ship(order, {0: more[len(lines) :]}, have={0: size_of(lines)})
    assert account(still, order, BOOT_TS + 35.0)["productive"] == 15 * STEP_S
    assert order.run in still.get(f"/experiments/{order.experiment}/goodput")["runs"]
    still.http.get(still.call("POST", "/sign-in-links").json()["url"])
    page = still.http.get(f"/experiments/{order.experiment}").text
    assert 'class="part-productive"' in page
    assert "Effective training time" in page
