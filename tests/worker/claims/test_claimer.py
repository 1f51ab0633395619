"""Does one round do what it should, and no more, in each state of the world?"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.rundir import SHIPPED_NAME, save_json
from gonogo.supervise.locks import DeviceLocks, holding, is_locked, launch_lock
from gonogo.supervise.processes import boot_id, load_stat
from tests.supervise.orders import completed, make_order, make_run_dir, write_beats
from tests.worker.control_plane import KEY, FakeControlPlane, RunStore, serving
from worker.claims import engine_runs
from worker.claims.claimer import SEND_AGAIN_S, Claimer
from worker.claims.engine_runs import make_room
from worker.host.home import ClaimSecrets, mark_machine
from worker.host.preflight import Probe, ProbeStore
from worker.host.slots import Slots
from worker.settings import load_settings
from worker.shipping.shipper import Shipper


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with serving(FakeControlPlane()) as served:
        yield served


@pytest.fixture
def claimer(
    tmp_path: Path, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Claimer]:
    """A claimer with the key in its home, whose keepers are not really started."""
    monkeypatch.setattr(ProbeStore, "result", lambda self, _: Probe(torch="2", collect_env="x"))
    (tmp_path / "worker_key").write_text(KEY)
    settings = load_settings({"GONOGO_HOME": str(tmp_path), "GONOGO_URL": plane.url})
    store = ProbeStore(tmp_path, tmp_path, {})
    made = Claimer(
        settings=settings,
        name="w",
        machine="a" * 32,
        slots=Slots(home=tmp_path, names=("cpu:0",), locks=DeviceLocks(home=tmp_path)),
        probes=store,
        wall=lambda: 50.0,
    )
    yield made
    made.close()


def ended(claimer: Claimer, order: Order) -> None:
    """A run of the claimer's home that has ended and was not shipped."""
    run_dir = make_run_dir(claimer.settings.runs, order)
    write_beats(run_dir, 0, range(5))
    save_json(run_dir.exit, completed().wire())


def test_only_one_worker_of_a_home_makes_a_round(claimer: Claimer, plane: FakeControlPlane) -> None:
    with holding(launch_lock(claimer.settings.home)):
        assert claimer.run_round() is None
    assert plane.calls == 0
    assert claimer.run_round() == []


def test_a_claim_lists_free_devices_and_open_runs(
    claimer: Claimer, plane: FakeControlPlane
) -> None:
    order = make_order()
    ended(claimer, order)
    with holding(claimer.slots.locks.path("cpu:0")):
        claimer.run_round()
        assert claimer.offered == 0
    claimer.run_round()
    assert claimer.offered == 1
    assert [(row.free, row.active) for row in plane.claims] == [
        ([], [order.run]),
        (["cpu:0"], [order.run]),
    ]


def test_no_claim_without_a_key(claimer: Claimer, plane: FakeControlPlane) -> None:
    (claimer.settings.home / "worker_key").unlink()
    assert claimer.run_round() == []
    assert plane.calls == 0
    (claimer.settings.home / "worker_key").write_text(KEY)
    claimer.run_round()
    assert len(plane.claims) == 1


def test_an_unshipped_run_does_not_delay_other_runs(
    claimer: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)  # pauses of their whole length
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    unknown, known = sorted((make_order(), make_order()), key=lambda order: order.run)
    for order in (unknown, known):
        ended(claimer, order)
    plane.runs[known.run] = RunStore(token=1)
    claimer.run_round()
    assert plane.runs[known.run].events()[-1] == "end"
    calls = plane.calls
    claimer.run_round()
    assert plane.calls == calls + 1  # the claim; the unknown run waits for its time


def ship(claimer: Claimer, plane: FakeControlPlane) -> Order:
    """A run that was shipped to its end."""
    order = make_order()
    ended(claimer, order)
    mark_machine(claimer.settings.runs / order.run, claimer.machine, "boot")
    ClaimSecrets(claimer.settings.home).save(order.run, "secret")
    plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    claimer.run_round()
    assert plane.runs[order.run].events()[-1] == "end"
    return order


def test_a_restored_control_plane_gets_everything_again(
    claimer: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    order = ship(claimer, plane)
    told = plane.runs[order.run]
    again = plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    plane.untold = [order.run]
    claimer.run_round()
    claimer.run_round()
    assert again.events() == told.events()
    assert again.raw == told.raw
    assert plane.claims[-1].active == []
    later = plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    for _ in range(2):
        claimer.run_round()
    assert later.events() == [], "a control plane that asks for ever costs little"
    clock[0] += SEND_AGAIN_S
    for _ in range(2):
        claimer.run_round()
    assert later.events() == told.events(), "it may be restored twice"


def test_a_run_queued_again_by_a_restore_starts_once(
    claimer: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that does not name it has it given out again, and what lives is fenced off."""
    with subprocess.Popen(["true"]) as keeper:
        monkeypatch.setattr(engine_runs, "start_keeper", lambda *_, **__: keeper)
    order = ship(claimer, plane)
    plane.runs[order.run] = RunStore(token=order.token + 1, secret="another")
    plane.orders.append(make_order(run=order.run, token=order.token + 1))
    assert claimer.run_round() == [order.run]
    assert plane.claims[-1].active == [order.run]


def test_a_fenced_run_is_not_sent_again(claimer: Claimer, plane: FakeControlPlane) -> None:
    order = ship(claimer, plane)
    save_json(claimer.settings.runs / order.run / SHIPPED_NAME, {"v": 1, "fenced": True})
    plane.untold = [order.run, "../../etc", "run_1", make_order().run]
    for _ in range(2):
        claimer.run_round()
    assert (claimer.settings.runs / order.run / SHIPPED_NAME).exists()
    assert plane.claims[-1].active == []


def test_an_unfit_host_rests_ever_longer(
    claimer: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = Check(id="shm", outcome=CheckOutcome.FAIL, text="full")
    record = Preflight(passed=False, checks=[unfit])
    monkeypatch.setattr(engine_runs, "run_preflight", lambda *_, **__: record)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plane.orders += [make_order(), make_order()]
    claimer.run_round()
    assert plane.claims[-1].free == []  # the first run failed; nothing more is asked for
    for pause_s, free in ((9.0, []), (2.0, ["cpu:0"]), (19.0, []), (2.0, ["cpu:0"])):
        now[0] += pause_s
        before = len(plane.claims)
        claimer.run_round()
        assert plane.claims[before].free == free


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "the disk is full"), KeyError("x"), None], ids=repr
)
def test_the_gpus_of_a_lost_run_are_checked_even_if_it_cannot_be_shipped(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Its end is written once; the next run would get them with what is left on them."""
    lost = make_run_dir(claimer.settings.runs, make_order(profile="h200", world_size=1))
    save_json(lost.path / "keeper.json", {"boot_id": "before", "locks": ["GPU-0"]})

    def finish(*_: object, **__: object) -> bool:
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(Shipper, "finish", finish)
    claimer.run_round()
    try:
        assert lost.exit.exists()
        assert is_locked(claimer.slots.locks.path("GPU-0"))
    finally:
        for child in claimer._children:
            child.kill()
            child.wait()


def test_a_keeper_that_fails_to_start_ends_the_run(
    claimer: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr(engine_runs, "start_keeper", refuse)
    order = make_order()
    plane.orders.append(order)
    assert claimer.run_round() == []
    end = plane.runs[order.run].states[-1]
    assert end.exit is not None
    assert end.exit.reason is OutcomeCode.PREFLIGHT_FAILED
    assert "no memory" in end.exit.text
    assert end.exit.ended_at == 50.0


def test_the_newest_token_owns_the_directory(tmp_path: Path) -> None:
    order = make_order(token=2)
    path = tmp_path / order.run
    assert make_room(path, order)
    assert make_room(path, order)  # nothing was written yet: a worker died in between
    save_json(path / "order.json", order.document())
    assert not make_room(path, order)
    assert not make_room(path, make_order(run=order.run, token=1))
    assert make_room(path, make_order(run=order.run, token=3))
    assert list(path.iterdir()) == []
    (aside,) = [other for other in tmp_path.iterdir() if other != path]
    assert aside.name.startswith(f".{order.run}.2.")


def test_a_directory_with_a_living_keeper_is_not_reused(tmp_path: Path) -> None:
    """Its ranks write there; after the report of the end it may be set aside."""
    order = make_order(token=2)
    path, stat = tmp_path / order.run, load_stat(os.getpid())
    assert make_room(path, order)
    save_json(path / "order.json", order.document())
    assert stat is not None
    living = {"pid": os.getpid(), "start_ticks": stat.start_ticks, "boot_id": boot_id()}
    save_json(path / "keeper.json", living)
    newer = make_order(run=order.run, token=3)
    assert not make_room(path, newer)
    assert (path / "order.json").exists()
    save_json(path / "exit.json", {})
    assert make_room(path, newer)
