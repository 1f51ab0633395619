"""Does a run whose keeper is gone end once, with nothing of it left and everything shipped?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.processes import boot_id, load_stat
from tests.supervise.orders import make_order, make_run_dir, write_beats, write_finding
from tests.worker.control_plane import KEY, FakeControlPlane, RunStore, serving
from worker.claims.engine_runs import ShipperOf, end_and_ship
from worker.client import ControlPlane
from worker.host.home import OpenRun, RunInventory
from worker.shipping.shipper import Shipper

ORDER = make_order(token=3)


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with serving(FakeControlPlane(runs={ORDER.run: RunStore(token=3)})) as served:
        yield served


@pytest.fixture
def ship(plane: FakeControlPlane) -> Iterator[ShipperOf]:
    with ControlPlane(plane.url, KEY) as client:

        def shipper_of(run_dir: RunDir, order: Order) -> Shipper | None:
            return Shipper(run_dir, order.run, order.token, client)

        yield shipper_of


@pytest.fixture
def lost(tmp_path: Path) -> RunDir:
    """A run that was under way when its keeper was killed."""
    run_dir = make_run_dir(tmp_path, ORDER)
    write_beats(run_dir, 0, range(30))
    write_finding(run_dir, "a")
    state = {"pid": 2**22 - 1, "start_ticks": 1, "boot_id": boot_id()}
    save_json(run_dir.path / "keeper.json", state)
    return run_dir


def only(runs: Path) -> OpenRun:
    (found,) = RunInventory(runs).open_runs()
    return found


def test_a_lost_run_ends_as_infra_and_ships_completely(
    tmp_path: Path, lost: RunDir, plane: FakeControlPlane, ship: ShipperOf
) -> None:
    save_json(lost.rank_exit(0), RankExit(signal=9, at=99.0).wire())
    assert end_and_ship(only(tmp_path), ship, now=500.0)
    record = load_record(lost.exit, ExitRecord)
    assert record is not None
    assert (record.reason, record.ended_by) == (OutcomeCode.KEEPER_LOST, Actor.INFRA)
    assert record.ended_at == 500.0
    assert record.ranks["0"].signal == 9
    assert (record.run, record.attempt) == (ORDER.run, ORDER.attempt)
    assert record.order_sha256 == sha256(lost.order.read_bytes()).hexdigest()
    assert record.watch is not None
    arrived = plane.runs[ORDER.run]
    assert len(arrived.lines["0"]) == 30
    assert (arrived.events()[-1], arrived.states[-1].findings) == ("end", 1)
    assert RunInventory(tmp_path).open_runs() == []


def test_a_run_with_a_living_keeper_is_left_alone(
    tmp_path: Path, lost: RunDir, plane: FakeControlPlane, ship: ShipperOf
) -> None:
    stat = load_stat(os.getpid())
    assert stat is not None
    state = {"pid": os.getpid(), "start_ticks": stat.start_ticks, "boot_id": boot_id()}
    save_json(lost.path / "keeper.json", state)
    assert not end_and_ship(only(tmp_path), ship, now=500.0)
    assert not lost.exit.exists()
    assert plane.calls == 0


def test_the_end_waits_while_the_control_plane_is_down(
    tmp_path: Path, lost: RunDir, plane: FakeControlPlane, ship: ShipperOf
) -> None:
    plane.down = True
    assert not end_and_ship(only(tmp_path), ship, now=500.0)
    assert lost.exit.exists()
    plane.down = False
    assert end_and_ship(only(tmp_path), ship, now=600.0)
    assert plane.runs[ORDER.run].states[-1].at == 500.0


def test_a_torn_exit_record_is_set_aside_and_replaced(
    tmp_path: Path, lost: RunDir, ship: ShipperOf
) -> None:
    lost.exit.write_text('{"v": 1, "co')
    assert end_and_ship(only(tmp_path), ship, now=500.0)
    assert (lost.path / "exit.json.corrupt").exists()
    assert load_record(lost.exit, ExitRecord) is not None
