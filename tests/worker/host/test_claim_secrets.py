"""Whose are the runs of a home, and who may read their secrets?"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from tests.supervise.orders import make_order, make_run_dir
from worker.host.claim_secrets import KEPT_S, ClaimSecrets, mark_machine
from worker.host.open_runs import RunInventory

OURS, THEIRS = "a" * 32, "b" * 32


def test_a_secret_is_readable_by_its_owner_alone_and_lies_outside_the_run(tmp_path: Path) -> None:
    secrets = ClaimSecrets(tmp_path)
    assert secrets.load("run_1") is None
    secrets.save("run_1", "first")
    secrets.save("run_1", "second")
    assert secrets.load("run_1") == "second"
    (path,) = (tmp_path / "claims").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    secrets.save("run_1", None)
    assert secrets.load("run_1") is None


def test_a_secret_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is synced after it was given."""
    real, secrets, run = os.fsync, ClaimSecrets(tmp_path), make_order().run
    synced: list[tuple[str, list[str]]] = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, sorted(os.listdir(path)) if path.is_dir() else []))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    secrets.save(run, "secret")
    assert synced == [(f".{run}.tmp", []), ("claims", [run])]


def test_a_secret_is_kept_as_long_as_its_run_has_a_directory(tmp_path: Path) -> None:
    secrets = ClaimSecrets(tmp_path)
    later = time.time() + KEPT_S + 60
    secrets.forget_gone(tmp_path / "runs", later)
    here, gone = make_order(), make_order()
    make_run_dir(tmp_path / "runs", here)
    for run in (here.run, gone.run):
        secrets.save(run, f"of {run}")
    for name in (f".{gone.run}.tmp", f".{here.run}.tmp"):
        (tmp_path / "claims" / name).write_text("of a write that was killed")
    secrets.forget_gone(tmp_path / "runs", time.time())
    assert secrets.load(gone.run) == f"of {gone.run}"
    secrets.forget_gone(tmp_path / "runs", later)
    kept = sorted(path.name for path in (tmp_path / "claims").iterdir())
    assert kept == sorted([here.run, f".{here.run}.tmp"])
    assert secrets.load(here.run) == f"of {here.run}"


def test_a_secret_that_is_in_use_is_kept_however_long_ago_it_was_made(tmp_path: Path) -> None:
    """The runs of a run of weeks may be mounted late, or lie on another host's own disk."""
    secrets, used, unused = ClaimSecrets(tmp_path), make_order().run, make_order().run
    now = time.time()
    for run in (used, unused):
        secrets.save(run, f"of {run}")
        os.utime(tmp_path / "claims" / run, (now, now - 2 * KEPT_S))
    assert secrets.load(used) == f"of {used}"
    secrets.forget_gone(tmp_path / "runs", now)
    assert secrets.load(used) == f"of {used}"
    assert secrets.load(unused) is None


def test_a_run_of_another_machine_is_not_ours_to_end(tmp_path: Path) -> None:
    """On a shared home: its keeper lives elsewhere, and no lock of ours says so."""
    foreign, own = make_order(), make_order()
    mark_machine(make_run_dir(tmp_path, foreign).path, THEIRS, "boot")
    mark_machine(make_run_dir(tmp_path, own).path, OURS, "boot")
    assert [run.run for run in RunInventory(tmp_path, OURS).open_runs()] == [own.run]
    assert len(RunInventory(tmp_path).open_runs()) == 2
