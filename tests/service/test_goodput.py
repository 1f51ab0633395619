"""The time of a run, accounted for once and shown on pages, in REST and in metrics."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from gonogo.contract.order import Order
from service.conductor.upkeep import EVERY_S, find_due, update_accounts
from service.db.schema import AccountRow, RunRow
from service.views.goodput import (
    load_accounts,
    load_fleet_goodput,
)
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


def taken(plane: Plane, order: Order) -> dict[str, Any]:
    row = plane.context.store.read(lambda session: session.get(AccountRow, order.run))
    assert row is not None
    return {column.key: getattr(row, column.key) for column in inspect(AccountRow).columns}


def test_an_account_is_read_on_from_where_it_ended(still: Plane) -> None:
    worker, order, lines = begin(still)
    update_accounts(still.context)
    first = taken(still, order)
    assert (first["rank"], first["bytes"], first["closed"]) == (0, size_of(lines), False)
    assert first["told"]["step_s"] == 12 * STEP_S
    more = beats(order.model_copy(update={"steps": 15}), 0, step_s=STEP_S)
    worker.ship(order, {0: more[len(lines) :]}, have={0: size_of(lines)})
    update_accounts(still.context)
    assert taken(still, order) == first  # it is not due yet
    age(still, order)
    update_accounts(still.context)
    assert taken(still, order)["told"]["step_s"] == 15 * STEP_S
    assert account(still, order, BOOT_TS + 35.0)["productive"] == 15 * STEP_S


def age(plane: Plane, order: Order) -> None:
    def work(session: Session) -> None:
        session.get_one(AccountRow, order.run).at -= EVERY_S + 1

    plane.context.store.write(work)


def test_the_fleet_is_the_sum_of_accounts_weighted_by_devices(still: Plane) -> None:
    _, order, _ = begin(still)
    move(still, order, gpus=8)
    update_accounts(still.context)
    stored = taken(still, order)
    assert stored["devices"] == 8
    now = still.context.now()
    fleet = still.context.store.read(lambda session: load_fleet_goodput(session, now, 24.0))
    assert fleet.runs == 1
    assert fleet.productive_s == pytest.approx(8 * stored["seconds"]["productive"])
    assert still.get("/goodput")["productive_s"] == pytest.approx(8 * 24.0)
    assert still.get("/goodput", hours=0.5)["runs"] == 1  # it still runs
    move(still, order, ended_at=now - 7200.0)
    assert still.get("/goodput", hours=0.5)["runs"] == 0


def test_a_judged_run_is_closed_and_not_read_again(plane: Plane) -> None:
    experiment = plane.submit()
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.run_through(order)
    plane.wait(lambda: plane.get(f"/runs/{order.run}")["verdict"], "a verdict")
    update_accounts(plane.context)
    assert taken(plane, order)["closed"]
    ahead = plane.context.now() + 3600.0
    due = plane.context.store.read(lambda session: find_due(session, ahead))
    assert due == []
    assert order.run in plane.get(f"/experiments/{experiment}/goodput")["runs"]


def test_page_fleet_and_metrics_show_where_the_time_went(still: Plane) -> None:
    _, order, _ = begin(still)
    update_accounts(still.context)
    link = still.call("POST", "/sign-in-links").json()["url"]
    still.http.get(link)
    page = still.http.get(f"/experiments/{order.experiment}").text
    assert 'class="part-productive"' in page
    assert "Effective training time" in page
    fleet = still.http.get("/fleet").text
    assert "The last day" in fleet
    assert 'class="part-productive"' in fleet
    metrics = still.http.get("/metrics").text
    assert 'gonogo_fleet_device_seconds{part="productive"} 24.0' in metrics
    assert f'gonogo_run_seconds{{part="productive",run="{order.run}"}} 24.0' in metrics
    assert f'gonogo_run_effective_ratio{{run="{order.run}"}}' in metrics
    assert not [
        line
        for line in metrics.splitlines()
        if "_seconds{" in line and line.endswith(" 0.0") and order.run in line
    ]
