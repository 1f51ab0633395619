"""What has a node to offer to a run that a scheduler has sent to it?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gonogo.contract.records import Check, CheckOutcome, Preflight
from gonogo.rundir import RunDir
from gonogo.slots import gpus_of
from gonogo.supervise.launch.place import Place
from gonogo.supervise.quarantine import load_quarantines
from tests.supervise.orders import make_order
from worker import once
from worker.host.slots import PLACES
from worker.once import find_own_slots
from worker.settings import load_settings


@pytest.mark.parametrize(("devices", "runs"), [(None, PLACES), ("cpu:2", 2)])
def test_a_node_without_gpus_takes_what_its_scheduler_sends(
    tmp_path: Path, devices: str | None, runs: int
) -> None:
    said = {} if devices is None else {"GONOGO_WORKER_DEVICES": devices}
    slots = find_own_slots(load_settings({"GONOGO_HOME": str(tmp_path), **said}))
    assert gpus_of(slots.names) or len(slots.names) == runs
    assert slots.locks.path(slots.names[0]).is_relative_to(tmp_path) or gpus_of(slots.names)


def test_a_gpu_that_is_not_fit_is_kept_from_the_next_run_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Check(id="devices", outcome=CheckOutcome.FAIL, text="ECC errors")
    unfit = {"GPU-a": "ECC errors", "cpu:0": "its name is every node's"}
    record = Preflight(passed=False, checks=[wrong], unfit=unfit)
    monkeypatch.setattr(once, "run_preflight", lambda *_, **__: record)
    settings = load_settings({"GONOGO_HOME": str(tmp_path)})
    order, run_dir = make_order(), RunDir(tmp_path / "runs" / "run")
    run_dir.path.mkdir(parents=True)
    place = Place.whole(order.document())
    assert once.check_host(settings, find_own_slots(settings), order, run_dir, place) is None
    assert list(load_quarantines(tmp_path, time.time())) == ["GPU-a"]
    assert run_dir.exit.exists()
