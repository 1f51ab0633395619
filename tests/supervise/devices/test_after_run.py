"""A device is released only when it is free; otherwise it is quarantined."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.rundir import save_json
from gonogo.supervise.devices import after_run
from gonogo.supervise.devices.after_run import await_free, faulty_ranks
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.keeper_start import start_draining
from gonogo.supervise.locks import DeviceLocks, is_locked, open_host_folder, take_lock
from tests.supervise.devices.fake_nvml import FakeNvml, healthy
from tests.supervise.orders import completed, make_order, make_run_dir
from tests.supervise.runs import ROOT, NewRun, wait_until

DRIVER = Path(__file__).parent / "driver"
SHIM = Path(__file__).parents[1] / "failing_disk"


def waited(changes: list[dict[str, Any]], **first: Any) -> tuple[list[str], dict[str, str]]:
    """What became of GPU-0 when its driver says other things from look to look."""
    fake = FakeNvml(gpus=[healthy("GPU-0", **first)])
    now, freed = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if changes:
            fake.gpus[0].update(changes.pop(0))

    left = {"GPU-0": "its driver does not answer"}
    calls = Nvml(load=lambda: fake)
    await_free(calls, left, freed.append, 5.0, clock=lambda: now[0], sleep=sleep)
    return freed, left


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"used_mb": 900}, "900 MB"), ({"pids": [77]}, "[77]"),
        ({"used_mb": None}, "cannot be read"), ({"lost": True}, "lost"),
    ],
)  # fmt: skip
def test_what_is_not_free_in_time_says_why(held: dict[str, Any], said: str) -> None:
    freed, left = waited([], **held)
    assert freed == []
    assert said in left["GPU-0"]


def test_the_rank_whose_device_failed_is_known(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, make_order())
    found = {"detector": "hardware", "severity": "halt", "rank": 1, "at": 1.0, "key": "k"}
    run_dir.findings.write_text(json.dumps({**found, "text": "Xid 79"}) + "\n")
    save_json(run_dir.exit, completed().wire())
    assert faulty_ranks(run_dir) == set()
    ended = {"reason": OutcomeCode.HARDWARE, "ended_by": Actor.WATCHDOG}
    save_json(run_dir.exit, completed().model_copy(update=ended).wire())
    assert faulty_ranks(run_dir) == {1}
    run_dir.findings.write_text("torn")
    assert faulty_ranks(run_dir) == set()


@pytest.fixture
def driver(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The file that defines the GPUs, and the environment that selects the scripted driver."""
    path = tmp_path / "gpus.json"
    folders = os.pathsep.join((str(DRIVER), str(ROOT)))
    return path, {"SCRIPTED_NVML": str(path), "PYTHONPATH": folders}


def test_a_device_that_stays_held_is_quarantined_and_let_go(
    tmp_path: Path, driver: tuple[Path, dict[str, str]]
) -> None:
    script, environ = driver
    script.write_text(json.dumps([healthy("GPU-0", used_mb=900), healthy("GPU-1")]))
    run_dir = make_run_dir(tmp_path, make_order(profile="h200", world_size=2))
    save_json(run_dir.exit, completed().wire())
    locks = DeviceLocks(home=tmp_path)
    held = {name: take_lock(locks.path(name)) for name in ("GPU-0", "GPU-1")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gonogo.supervise.devices.after_run", str(run_dir.path)),
            *("--home", str(tmp_path), "--limit-s", "0.6"),
            *(part for name, number in held.items() for part in ("--held", f"{name}={number}")),
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environ},
        pass_fds=[number for number in held.values() if number is not None],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (row,) = (tmp_path / "quarantine").iterdir()
    assert row.name == "GPU-0.json"
    assert "900 MB of its memory are in use" in row.read_text()


@pytest.mark.parametrize("now", ["a stale handle", "torn"])
def test_a_device_is_kept_away_where_nobody_can_look_whose_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    """It would be the next run's, with what is left on it."""
    run_dir = make_run_dir(tmp_path, make_order(profile="h200", world_size=1))
    if now == "torn":
        run_dir.order.write_text('{"v": 1, "exper')
    else:

        def refuse(*_: object) -> None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        monkeypatch.setattr(after_run, "load_record", refuse)
    held = take_lock(DeviceLocks(home=tmp_path).path("GPU-0"))
    assert held is not None
    told = ["--home", str(tmp_path), "--limit-s", "0.6", "--held", f"GPU-0={held}"]
    assert after_run.main([str(run_dir.path), *told]) == 0
    os.close(held)
    assert "it is not known" in (tmp_path / "quarantine" / "GPU-0.json").read_text()


def test_the_gpus_of_a_lost_keeper_are_held_until_they_are_free(
    tmp_path: Path, driver: tuple[Path, dict[str, str]]
) -> None:
    script, environ = driver
    script.write_text(json.dumps([healthy("GPU-0", used_mb=900)]))
    run_dir = make_run_dir(tmp_path, make_order(profile="h200", world_size=1))
    locks = DeviceLocks(home=tmp_path)
    asked = {"home": tmp_path, "locks": locks, "environ": {"PATH": os.environ["PATH"], **environ}}
    save_json(run_dir.path / "keeper.json", {"locks": ["cpu:0"]})
    assert start_draining(run_dir.path, **asked) is None
    save_json(run_dir.path / "keeper.json", {"locks": ["GPU-0"]})
    looking = start_draining(run_dir.path, **asked)
    assert looking is not None
    assert is_locked(locks.path("GPU-0"))
    script.write_text(json.dumps([healthy("GPU-0")]))
    assert looking.wait(60) == 0
    assert not is_locked(locks.path("GPU-0"))
    assert not (tmp_path / "quarantine").exists()


def test_a_keeper_passes_its_gpu_on_to_who_proves_it_free(
    new_run: NewRun, tmp_path: Path, driver: tuple[Path, dict[str, str]]
) -> None:
    script, environ = driver
    script.write_text(json.dumps([healthy("GPU-0", used_mb=900)]))
    home, shared = tmp_path / "home", open_host_folder(tmp_path / "host")
    lock = DeviceLocks(home=home, shared=shared).path("GPU-0")
    other = DeviceLocks(home=tmp_path / "other", shared=shared)
    assert other.free(("GPU-0",)) == ("GPU-0",)
    options = ("--home", str(home), "--lock", str(lock))
    run = new_run(*options, environ=environ, world_size=1, steps=3)
    run.wait_for_step(1)
    assert other.free(("GPU-0",)) == (), "another home of this host sees it taken"
    assert run.wait_for_exit().reason is OutcomeCode.COMPLETED
    assert run.keeper is not None
    assert run.keeper.wait(60) == 0
    assert other.free(("GPU-0",)) == (), "its memory is held"
    script.write_text(json.dumps([healthy("GPU-0")]))
    wait_until(lambda: other.free(("GPU-0",)), "the device")
    assert not (home / "quarantine").exists()
