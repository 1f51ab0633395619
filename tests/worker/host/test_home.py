"""Whose are the runs of a home, which are open, and who may read their secrets?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gonogo.rundir import save_json
from tests.supervise.orders import make_order, make_run_dir
from worker.host.home import (
    ClaimSecrets,
    RunInventory,
    mark_machine,
    take_worker_number,
    worker_name,
)

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


def test_a_run_of_another_machine_is_not_ours_to_end(tmp_path: Path) -> None:
    """On a shared home: its keeper lives elsewhere, and no lock of ours says so."""
    foreign, own = make_order(), make_order()
    mark_machine(make_run_dir(tmp_path, foreign).path, THEIRS, "boot")
    mark_machine(make_run_dir(tmp_path, own).path, OURS, "boot")
    assert [run.run for run in RunInventory(tmp_path, OURS).open_runs()] == [own.run]
    assert len(RunInventory(tmp_path).open_runs()) == 2


def test_a_run_is_open_until_it_is_shipped(tmp_path: Path) -> None:
    inventory = RunInventory(tmp_path / "runs")
    assert inventory.open_runs() == []
    run_dir = make_run_dir(tmp_path / "runs", make_order())
    (found,) = inventory.open_runs()
    assert (found.path, found.ended, found.keeper) == (run_dir.path, False, None)
    save_json(run_dir.exit, {})
    assert inventory.open_runs()[0].ended
    (run_dir.path / ".shipped").touch()
    assert inventory.open_runs() == []


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "run_empty").mkdir(parents=True)
    (runs / ".run_old.1.2").mkdir()
    (runs / "notes.txt").touch()
    (runs / "run_file").touch()
    assert RunInventory(runs).open_runs() == []


def test_a_keeper_record_that_is_torn_is_no_living_keeper(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, make_order())
    for text in ("", "{", "[]", '{"pid": "x", "start_ticks": 1}', '{"pid": 1}'):
        (run_dir.path / "keeper.json").write_text(text)
        assert RunInventory(tmp_path).open_runs()[0].keeper is None


def test_a_run_that_cannot_be_read_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be given out again."""

    def refuse(path: Path) -> bool:
        raise OSError("stale file handle")

    make_run_dir(tmp_path, make_order())
    monkeypatch.setattr("worker.host.home.is_there", refuse)
    (found,) = RunInventory(tmp_path).open_runs()
    assert found.unread is not None


def test_two_workers_of_a_home_have_different_numbers_and_a_dead_one_leaves_its_own(
    tmp_path: Path,
) -> None:
    first, second = take_worker_number(tmp_path), take_worker_number(tmp_path)
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (0, 1)
    os.close(first[1])
    third = take_worker_number(tmp_path)
    assert third is not None
    assert third[0] == 0
    for _, descriptor in (second, third):
        os.close(descriptor)


def new_home(folder: Path) -> Path:
    """Return a home in which a worker has taken its number."""
    taken = take_worker_number(folder)
    assert taken is not None
    os.close(taken[1])
    return folder


def test_a_workers_name_is_its_machines_its_homes_and_its_numbers(tmp_path: Path) -> None:
    home, other = new_home(tmp_path / "a"), new_home(tmp_path / "b")
    names = {
        worker_name(home, "node-1", "machine", 0),
        worker_name(home, "node-1", "machine", 1),
        worker_name(home, "node-1", "another machine", 0),
        worker_name(other, "node-1", "machine", 0),
    }
    assert len(names) == 4
    assert worker_name(home, "node 1/a", "machine", 0).startswith("node-1-a-")


def test_a_home_that_another_path_leads_to_has_the_same_workers(tmp_path: Path) -> None:
    """The key that a worker claims with is bound to its name: it was locked out."""
    home, link = new_home(tmp_path / "home"), tmp_path / "link"
    link.symlink_to(home)
    assert worker_name(home, "node", "m", 0) == worker_name(link, "node", "m", 0)
