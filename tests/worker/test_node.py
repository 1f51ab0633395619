"""What has a node to offer to a run that a scheduler has sent to it?"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Unavailable
from gonogo.contract.order import Order
from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.end_request import EndRequest, ask_halt, load_request
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.locks import DeviceLocks, holding
from gonogo.supervise.process_records import EXIT_NAME, MEET_NAME, own_keeping
from tests.supervise.orders import completed, make_order, make_run_dir
from worker import node as program
from worker.host.slots import Slots
from worker.node import find_own_slots
from worker.settings import load_settings


def test_an_unfit_gpu_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check(id="devices", outcome=CheckOutcome.FAIL, text="ECC errors")
    unfit = {"GPU-a": "ECC errors", "cpu:0": "its name is every node's"}
    record = Preflight(passed=False, checks=[wrong], unfit=unfit)
    monkeypatch.setattr(program, "run_preflight", lambda *_, **__: record)
    settings = load_settings({"GONOGO_HOME": str(tmp_path)})
    order, run_dir = make_order(), RunDir(tmp_path / "runs" / "run")
    run_dir.path.mkdir(parents=True)
    place = Place.of(order.document())
    assert program.check_host(settings, find_own_slots(settings), order, run_dir, place) is None
    assert (tmp_path / "quarantine" / "GPU-a.json").exists()
    assert run_dir.exit.exists()


def kept(run_dir: RunDir, order: Order, node: int) -> None:
    """Its keeper came together with the others, and holds its lock no more."""
    save_json(
        run_dir.path / MEET_NAME.format(node),
        own_keeping(node=node, token=1, address="a:1").document(5.0),
    )


def keeper_has_begun(run_dir: RunDir, order: Order, node: int) -> None:
    save_json(run_dir.path / "keeper.json", {"v": 1})


def has_ended(run_dir: RunDir, order: Order, node: int) -> None:
    save_json(run_dir.exit, completed().wire())


def part_has_ended(run_dir: RunDir, order: Order, node: int) -> None:
    save_json(run_dir.path / EXIT_NAME.format(node), {"v": 1})


@pytest.mark.parametrize(
    ("nodes", "begin"),
    [(1, keeper_has_begun), (1, has_ended), (2, kept), (2, has_ended), (2, part_has_ended)],
)
def test_a_second_start_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    begin: Callable[[RunDir, Order, int], None],
) -> None:
    """Its devices are taken, by the run itself."""
    order = make_order(nodes=nodes, world_size=nodes)
    run_dir = make_run_dir(tmp_path / "runs", order)
    node = nodes - 1
    save_json(run_dir.preflight_of(node), Preflight(passed=True).wire())
    begin(run_dir, order, node)
    before = contents(run_dir)
    assert start(tmp_path, monkeypatch, order, node) == 75
    assert contents(run_dir) == before


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_first_start_reports_an_unfit_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    order = make_order(nodes=nodes, world_size=nodes)
    run_dir = make_run_dir(tmp_path / "runs", order)
    if nodes == 2:
        older = own_keeping(node=1, token=0, address="a:1").document(5.0)
        save_json(run_dir.path / MEET_NAME.format(1), older)
        kept(run_dir, order, 0)
    assert start(tmp_path, monkeypatch, order, nodes - 1) == 0
    assert (run_dir.exit if nodes == 1 else run_dir.path / EXIT_NAME.format(1)).exists()


def test_a_leave_request_uses_the_reserve_of_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler says once that the job's time is up."""
    order = make_order()
    run_dir = make_run_dir(tmp_path / "runs", order)
    reserve = run_dir.path / ".reserve.0"
    reserve.write_bytes(bytes(9))
    ask = ask_halt

    def refuse(path: Path, request: EndRequest) -> bool:
        if reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return ask(path, request)

    monkeypatch.setattr(program, "ask_halt", refuse)
    assert leave(tmp_path, monkeypatch, order) == 0
    asked = load_request(run_dir.halt)
    assert asked is not None
    assert asked.reason == "preempted"
    assert leave(tmp_path, monkeypatch, order) == 0
    assert load_request(run_dir.halt) == asked, "the first one stands"


def test_a_leave_request_needs_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that fell off the bus takes the driver along, and the scheduler says it once."""
    order = make_order()
    run_dir = make_run_dir(tmp_path / "runs", order)

    def hang(*_: object, **__: object) -> Slots:
        raise Unavailable("the GPUs of this host cannot be listed")

    monkeypatch.setattr(program, "find_slots", hang)
    assert start(tmp_path, monkeypatch, order, 0) == 2
    assert leave(tmp_path, monkeypatch, order) == 0
    assert run_dir.halt.exists()


def test_a_slot_taken_by_another_run_is_left_to_it(tmp_path: Path) -> None:
    locks = DeviceLocks(home=tmp_path)
    slots = Slots(home=tmp_path, names=("cpu:0", "cpu:1"), locks=locks)
    with holding(locks.path("cpu:0")):
        held = program.hold_slot(slots, ("cpu:0",))
        assert list(held) == ["cpu:1"]
        assert program.hold_slot(slots, ("cpu:0",)) == {}, "its keeper waits for it, and says so"
    assert locks.free(slots.names) == ("cpu:0",)
    for descriptor in held.values():
        assert os.get_inheritable(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("job", [{"SLURM_JOB_ID": "7"}, {}], ids=["in a job of Slurm", "in a pod"])
def test_a_keeper_shields_its_ranks_under_slurm_and_hides_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, str]
) -> None:
    """GONOGO_WORKER_ALLOW_ENV=any passes on what it sees: a trainer sets itself up by these."""
    became: list[str] = []
    seen: dict[str, str] = {}

    def become(_path: str, command: list[str], environ: dict[str, str]) -> None:
        became.extend(command)
        seen.update(environ)
        raise InterruptedError

    for name, found in (("execve", become), ("dup2", lambda *_: None), ("chdir", lambda _: None)):
        monkeypatch.setattr(program.os, name, found)
    sets = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "n", "SRUN_DEBUG": "3"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "TEAM": "ours"}
    settings = load_settings({"GONOGO_HOME": str(tmp_path), **sets, **kept, **job})
    slots = Slots(home=tmp_path, names=(), locks=DeviceLocks(home=tmp_path))
    place = Place.of(make_order(nodes=2, world_size=2).document(), 1)
    with pytest.raises(InterruptedError):
        program.become_keeper(settings, slots, RunDir(tmp_path), place, ())
    assert became[became.index("--node") + 1] == "1"
    assert ("--shield" in became) is bool(job)
    assert kept.items() <= seen.items()
    assert sets.keys().isdisjoint(seen)


def leave(home: Path, monkeypatch: pytest.MonkeyPatch, order: Order) -> int:
    monkeypatch.setattr(program, "load_settings", lambda: load_settings({"GONOGO_HOME": str(home)}))
    return program.main([order.run, "--leave"])


def start(home: Path, monkeypatch: pytest.MonkeyPatch, order: Order, node: int) -> int:
    """What `worker.node` answers on a host that is not fit."""
    wrong = Check(id="devices", outcome=CheckOutcome.FAIL, text="there are not enough")

    def look(order: Order, run_dir: RunDir, **more: Any) -> Preflight:
        found = Preflight(passed=False, checks=[wrong])
        save_json(run_dir.preflight_of(more["node"]), found.wire())
        return found

    monkeypatch.setattr(program, "run_preflight", look)
    monkeypatch.setenv("GONOGO_HOME", str(home))
    monkeypatch.setenv("SLURM_NODEID", str(node))
    return program.main([order.run, "--token", str(order.token)])


def contents(run_dir: RunDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}


def test_look_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = make_order()
    make_run_dir(tmp_path / "runs", order)
    settings = load_settings({"GONOGO_HOME": str(tmp_path)})
    monkeypatch.setattr(program, "load_settings", lambda: settings)
    monkeypatch.setattr(program, "SEEN_LIMIT_S", 0.0)
    before = sorted(tmp_path.rglob("*"))
    assert program.main([order.run, "--look", "--token", str(order.token)]) == 0
    assert program.main([order.run, "--look", "--token", str(order.token + 1)]) == 75
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "runs" / order.run / "order.json").unlink()
    assert program.main([order.run, "--look", "--token", str(order.token)]) == 2
