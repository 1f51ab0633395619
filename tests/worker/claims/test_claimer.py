"""Does one round do what it should, and no more, in each state of the world?"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.rundir import SHIPPED_NAME, save_json
from gonogo.supervise.given_up import give_up, load_refusals
from gonogo.supervise.locks import DeviceLocks, holding, is_locked, launch_lock
from gonogo.supervise.processes import boot_id, load_stat
from tests.supervise.orders import completed, make_order, make_run_dir, write_beats
from tests.worker.control_plane import KEY, FakeControlPlane, RunStore, serving
from worker.claims import launching
from worker.claims.claimer import SEND_AGAIN_S, SETTLE_S, Claimer
from worker.claims.launching import make_room
from worker.host.claim_secrets import ClaimSecrets, mark_machine
from worker.host.open_runs import OpenRun
from worker.host.probe import Probe, ProbeStore
from worker.host.slots import Slots
from worker.settings import load_settings
from worker.shipping.shipper import Shipper


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with serving(FakeControlPlane()) as served:
        yield served


@pytest.fixture
def desk(
    tmp_path: Path, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Claimer]:
    """A desk with the key in its home, whose keepers are not really started."""
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


def ended(desk: Claimer, order: Order) -> None:
    """A run of the desk's home that has ended and was not shipped."""
    run_dir = make_run_dir(desk.settings.runs, order)
    write_beats(run_dir, 0, range(5))
    save_json(run_dir.exit, completed().wire())


def test_a_round_of_another_worker_is_not_disturbed(desk: Claimer, plane: FakeControlPlane) -> None:
    with holding(launch_lock(desk.settings.home)):
        assert desk.run_round() is None
    assert plane.calls == 0
    assert desk.run_round() == []


def test_a_claim_says_what_is_free_and_what_is_open(desk: Claimer, plane: FakeControlPlane) -> None:
    order = make_order()
    ended(desk, order)
    with holding(desk.slots.locks.path("cpu:0")):
        desk.run_round()
        assert desk.offered == 0
    desk.run_round()
    assert desk.offered == 1
    assert [(row.free, row.active) for row in plane.claims] == [
        ([], [order.run]),
        (["cpu:0"], [order.run]),
    ]


def test_without_a_key_nothing_is_asked_and_with_one_it_is(
    desk: Claimer, plane: FakeControlPlane
) -> None:
    (desk.settings.home / "worker_key").unlink()
    assert desk.run_round() == []
    assert plane.calls == 0
    (desk.settings.home / "worker_key").write_text(KEY)
    desk.run_round()
    assert len(plane.claims) == 1


def test_a_run_that_cannot_be_shipped_does_not_hold_others_back(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)  # pauses of their whole length
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    unknown, known = sorted((make_order(), make_order()), key=lambda order: order.run)
    for order in (unknown, known):
        ended(desk, order)
    plane.runs[known.run] = RunStore(token=1)
    desk.run_round()
    assert plane.runs[known.run].events()[-1] == "end"
    calls = plane.calls
    desk.run_round()
    assert plane.calls == calls + 1  # the claim; the unknown run waits for its time


def test_runs_that_take_long_to_settle_hold_no_claim_back(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may wait a minute for a watcher that sees its end."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    settled = []

    def take_long(run: OpenRun, *_: Any, **__: Any) -> bool:
        settled.append(run.run)
        now[0] += SETTLE_S
        return False

    monkeypatch.setattr("worker.claims.claimer.end_and_ship", take_long)
    orders = sorted((make_order() for _ in range(3)), key=lambda order: order.run)
    for order in orders:
        ended(desk, order)
    for n in range(3):
        desk.run_round()
        assert settled == [order.run for order in orders[: n + 1]]
        assert len(plane.claims) == n + 1


def ship(desk: Claimer, plane: FakeControlPlane) -> Order:
    """A run that was shipped to its end."""
    order = make_order()
    ended(desk, order)
    mark_machine(desk.settings.runs / order.run, desk.machine, "boot")
    ClaimSecrets(desk.settings.home).save(order.run, "secret")
    plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    desk.run_round()
    assert plane.runs[order.run].events()[-1] == "end"
    return order


def test_what_a_restored_control_plane_does_not_know_of_is_told_again(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    order = ship(desk, plane)
    told = plane.runs[order.run]
    again = plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    assert plane.claims[-1].tells_again
    plane.untold = [order.run]
    desk.run_round()
    desk.run_round()
    assert again.events() == told.events()
    assert again.raw == told.raw
    assert plane.claims[-1].active == []
    later = plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    for _ in range(2):
        desk.run_round()
    assert later.events() == [], "a control plane that asks for ever costs little"
    clock[0] += SEND_AGAIN_S
    for _ in range(2):
        desk.run_round()
    assert later.events() == told.events(), "it may be restored twice"


def test_a_run_that_waits_again_in_a_restored_database_is_begun_once_and_is_the_workers(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that does not name it has it given out again, and what lives is fenced off."""
    with subprocess.Popen(["true"]) as keeper:
        monkeypatch.setattr(launching, "start_keeper", lambda *_, **__: keeper)
    order = ship(desk, plane)
    plane.runs[order.run] = RunStore(token=order.token + 1, secret="another")
    plane.orders.append(make_order(run=order.run, token=order.token + 1))
    assert desk.run_round() == [order.run]
    assert plane.claims[-1].active == [order.run]


def fenced(desk: Claimer, order: Order) -> None:
    save_json(desk.settings.runs / order.run / SHIPPED_NAME, {"v": 1, "fenced": True})


def foreign(desk: Claimer, order: Order) -> None:
    mark_machine(desk.settings.runs / order.run, "b" * 32, "boot")


def pruned(desk: Claimer, order: Order) -> None:
    (desk.settings.runs / order.run / "exit.json").unlink()


@pytest.mark.parametrize("spoil", [fenced, foreign, pruned])
def test_what_was_taken_from_the_worker_or_is_gone_is_not_told_again(
    desk: Claimer, plane: FakeControlPlane, spoil: Callable[[Claimer, Order], None]
) -> None:
    order = ship(desk, plane)
    spoil(desk, order)
    plane.untold = [order.run, "../../etc", "run_1", make_order().run]
    for _ in range(2):
        desk.run_round()
    assert (desk.settings.runs / order.run / SHIPPED_NAME).exists()
    assert plane.claims[-1].active == []


def lost_claim(desk: Claimer, plane: FakeControlPlane) -> Order:
    """A run that has ended, whose claim's secret is gone from the home."""
    order = make_order()
    ended(desk, order)
    mark_machine(desk.settings.runs / order.run, desk.machine, "boot")
    plane.runs[order.run] = RunStore(token=order.token, secret="secret")
    return order


def test_a_run_that_is_refused_for_good_waits_for_a_person_and_is_said(
    desk: Claimer,
    plane: FakeControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    order = lost_claim(desk, plane)
    for _ in range(5):
        desk.run_round()
        clock[0] += 60.0
    assert plane.claims[-1].active == [order.run], "nothing is given up by itself"
    said = [row.getMessage() for row in caplog.records if order.run in row.getMessage()]
    (line,) = (text for text in said if "gonogo abandon" in text)
    assert f"gonogo abandon {order.run} --reason" in line
    assert "not the claim's secret" in line

    kept = sorted(path.name for path in (desk.settings.runs / order.run).iterdir())
    give_up(desk.settings.runs, order.run, reason="its home was lost", now=7.0)
    calls = plane.calls
    for _ in range(3):
        clock[0] += 60.0
        desk.run_round()
    assert plane.calls == calls + 3, "the claims alone"
    assert plane.claims[-1].active == []
    now = sorted(path.name for path in (desk.settings.runs / order.run).iterdir())
    assert now == sorted([*kept, SHIPPED_NAME])

    plane.untold = [order.run, "../../etc"]
    for _ in range(2):
        desk.run_round()
    assert plane.claims[-1].given_up == {order.run: "its home was lost"}
    assert plane.claims[-1].active == []


def test_a_run_that_was_given_up_is_not_begun_again_and_its_directory_stays(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane that was refused every word of it takes it for one that never began."""
    order = lost_claim(desk, plane)
    desk.run_round()
    give_up(desk.settings.runs, order.run, reason="its home was lost", now=7.0)
    kept = sorted(desk.settings.runs.rglob("*"))
    plane.orders.append(make_order(run=order.run, token=order.token + 1))
    assert desk.run_round() == []
    assert sorted(desk.settings.runs.rglob("*")) == kept
    assert plane.claims[-1].given_up == {order.run: "its home was lost"}


def test_an_outage_and_a_key_that_is_refused_refuse_no_run(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    order = lost_claim(desk, plane)
    plane.key, shop = "another", plane.key
    desk.run_round()
    plane.key, plane.down = shop, True
    clock[0] += 60.0
    desk.run_round()
    assert list(load_refusals(desk.settings.runs)) == []
    with pytest.raises(Rejected, match="nobody has refused"):
        give_up(desk.settings.runs, order.run, reason="r", now=7.0)
    plane.down = False
    clock[0] += 60.0
    desk.run_round()
    assert [row.run for row in load_refusals(desk.settings.runs)] == [order.run]
    ClaimSecrets(desk.settings.home).save(order.run, "secret")
    clock[0] += 60.0
    desk.run_round()
    assert plane.runs[order.run].events()[-1] == "end", "who finds the secret again has all of it"
    assert list(load_refusals(desk.settings.runs)) == []


def test_an_unfit_host_takes_nothing_for_a_while_each_time_longer(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = Check(id="shm", outcome=CheckOutcome.FAIL, text="full")
    record = Preflight(passed=False, checks=[unfit])
    monkeypatch.setattr(launching, "run_preflight", lambda *_, **__: record)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    plane.orders += [make_order(), make_order()]
    desk.run_round()
    assert plane.claims[-1].free == []  # the first run failed; nothing more is asked for
    for pause_s, free in ((9.0, []), (2.0, ["cpu:0"]), (19.0, []), (2.0, ["cpu:0"])):
        now[0] += pause_s
        before = len(plane.claims)
        desk.run_round()
        assert plane.claims[before].free == free


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "the disk is full"), KeyError("x"), None], ids=repr
)
def test_the_gpus_of_a_lost_run_are_looked_at_whatever_becomes_of_its_telling(
    desk: Claimer, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Its end is written once; the next run would get them with what is left on them."""
    lost = make_run_dir(desk.settings.runs, make_order(profile="h200", world_size=1))
    save_json(lost.path / "keeper.json", {"boot_id": "before", "locks": ["GPU-0"]})

    def finish(*_: object, **__: object) -> bool:
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(Shipper, "finish", finish)
    desk.run_round()
    try:
        assert lost.exit.exists()
        assert is_locked(desk.slots.locks.path("GPU-0"))
    finally:
        for child in desk._children:
            child.kill()
            child.wait()


def test_a_keeper_that_cannot_be_started_ends_the_run(
    desk: Claimer, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr(launching, "start_keeper", refuse)
    order = make_order()
    plane.orders.append(order)
    assert desk.run_round() == []
    end = plane.runs[order.run].states[-1]
    assert end.exit is not None
    assert end.exit.reason is OutcomeCode.PREFLIGHT_FAILED
    assert "no memory" in end.exit.text
    assert end.exit.ended_at == 50.0


def test_a_directory_belongs_to_the_newest_token(tmp_path: Path) -> None:
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


def test_a_directory_whose_keeper_lives_is_no_other_claims(tmp_path: Path) -> None:
    """Its ranks write there; once the end is told it may be set aside."""
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
