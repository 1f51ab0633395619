"""Is a folder of runs known again, and is nothing asked where nobody can know it?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gonogo.supervise import runs_folder
from gonogo.supervise.runs_folder import (
    NOTE_NAME,
    find_missing,
    is_mounted,
    mark_runs,
    take_as_new,
)
from tests.supervise.orders import make_order, make_run_dir


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is mounted is listed: runs/ of this home is a mount of its own."""
    path = tmp_path / "mountinfo"
    rows = ("/", str(tmp_path / "runs"), str(tmp_path / "other"))
    path.write_text("".join(f"25 1 259:2 / {row} rw shared:1 - ext4 /dev/x rw\n" for row in rows))
    monkeypatch.setattr(runs_folder, "MOUNTS", path)
    return path


def test_a_folder_within_its_home_that_is_gone_was_removed(tmp_path: Path, mounts: Path) -> None:
    mounts.write_text("25 1 259:2 / / rw shared:1 - ext4 /dev/x rw\n")
    runs = tmp_path / "runs"
    make_run_dir(runs, make_order())
    mark_runs(tmp_path, runs)
    shutil.rmtree(runs)
    assert find_missing(tmp_path, runs) is None
    make_run_dir(runs, make_order())
    mark_runs(tmp_path, runs)
    assert find_missing(tmp_path, runs) is None
    mounts.write_text(mounts.read_text() + f"9 1 0:1 / {runs} rw - ext4 /dev/y rw\n")
    (runs / NOTE_NAME).unlink()
    mark_runs(tmp_path, runs)
    shutil.rmtree(runs)
    assert find_missing(tmp_path, runs) is not None, "it has a mount of its own by now"


def test_a_mount_is_told_from_a_folder_of_the_home(tmp_path: Path, mounts: Path) -> None:
    home, disk = tmp_path / "my home", tmp_path / "disk"
    home.mkdir()
    (disk / "runs").mkdir(parents=True)
    named = str(home).replace(" ", "\\040")
    mounts.write_text(
        f"25 1 259:2 / / rw - ext4 /dev/x rw\n26 1 0:1 / {named} rw - ext4 /dev/y rw\n"
        f"27 1 0:1 / {disk} rw - ext4 /dev/z rw\ngarbage\n"
    )
    (home / "runs").symlink_to(disk / "runs")
    assert is_mounted(home, home / "runs")
    assert not is_mounted(home, home / "others")
    mounts.unlink()
    assert is_mounted(home, home / "others"), "nobody can say"


def test_an_upgrade_marks_the_folder_that_it_finds(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make_run_dir(runs, make_order())
    assert find_missing(tmp_path, runs) is None
    for _ in range(2):
        mark_runs(tmp_path, runs)
        assert find_missing(tmp_path, runs) is None
    (runs / NOTE_NAME).rename(tmp_path / "kept")
    assert "mount that one" in str(find_missing(tmp_path, runs))
    mark_runs(tmp_path, runs)
    assert find_missing(tmp_path, runs) is not None, "what is known stays known"
    (tmp_path / "kept").rename(runs / NOTE_NAME)
    assert find_missing(tmp_path, runs) is None


def test_an_empty_folder_is_no_folder_of_runs_yet(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    mark_runs(tmp_path, runs)
    assert not runs.exists()
    runs.mkdir()
    mark_runs(tmp_path, runs)
    assert list(runs.iterdir()) == []
    assert find_missing(tmp_path, runs) is None


def test_homes_that_share_a_folder_know_the_same(tmp_path: Path) -> None:
    one, two, runs = tmp_path / "one", tmp_path / "two", tmp_path / "runs"
    one.mkdir()
    two.mkdir()
    make_run_dir(runs, make_order())
    mark_runs(one, runs)
    mark_runs(two, runs)
    assert find_missing(one, runs) is find_missing(two, runs) is None


@pytest.mark.parametrize("note", ["", "[]", '{"v": 1}', '{"v": 1, "id": 7}'])
def test_a_note_that_nobody_can_read_is_none(tmp_path: Path, note: str) -> None:
    runs = tmp_path / "runs"
    make_run_dir(runs, make_order())
    (runs / NOTE_NAME).write_text(note)
    mark_runs(tmp_path, runs)
    assert find_missing(tmp_path, runs) is None
    (runs / NOTE_NAME).write_text(note)
    assert find_missing(tmp_path, runs) is not None
    take_as_new(tmp_path, runs)
    assert find_missing(tmp_path, runs) is None


def test_another_folder_is_not_taken_for_it_before_somebody_says_so(tmp_path: Path) -> None:
    runs, other = tmp_path / "runs", tmp_path / "other"
    make_run_dir(runs, make_order())
    make_run_dir(other, make_order())
    mark_runs(tmp_path, runs)
    (tmp_path / "elsewhere").mkdir()
    mark_runs(tmp_path / "elsewhere", other)
    assert find_missing(tmp_path, other) is not None
    take_as_new(tmp_path, other)
    assert find_missing(tmp_path, other) is None
    assert find_missing(tmp_path, runs) is not None


def row_of(path: Path) -> str:
    return f"9 1 0:1 / {path} rw - ext4 /dev/y rw\n"


def test_runs_that_move_to_a_mount_of_their_own_are_waited_for_from_then_on(
    tmp_path: Path, mounts: Path
) -> None:
    """The home's disk is full: they are copied to a new one, note and all, which is mounted."""
    root = "25 1 259:2 / / rw shared:1 - ext4 /dev/x rw\n"
    mounts.write_text(root)
    runs, below = tmp_path / "runs", tmp_path / "below"
    make_run_dir(runs, make_order())
    mark_runs(tmp_path, runs)
    mounts.write_text(root + row_of(runs))
    assert find_missing(tmp_path, runs) is None
    mark_runs(tmp_path, runs)
    runs.rename(below)
    mounts.write_text(root)
    assert find_missing(tmp_path, runs) is not None, "booted before its mount"
    below.rename(runs)
    mark_runs(tmp_path, runs)
    shutil.rmtree(runs)
    assert find_missing(tmp_path, runs) is None, "they were moved back, and removed"


def test_a_mount_that_is_laid_over_the_runs_of_a_home_hides_them(
    tmp_path: Path, mounts: Path
) -> None:
    root = "25 1 259:2 / / rw shared:1 - ext4 /dev/x rw\n"
    mounts.write_text(root)
    runs, below = tmp_path / "runs", tmp_path / "below"
    order = make_order()
    make_run_dir(runs, order)
    mark_runs(tmp_path, runs)
    runs.rename(below)
    runs.mkdir()
    mounts.write_text(root + row_of(runs))
    assert find_missing(tmp_path, runs) is not None
    make_run_dir(runs, order)
    assert find_missing(tmp_path, runs) is None, "its runs were copied, but for what is hidden"
    mark_runs(tmp_path, runs)
    runs.rename(tmp_path / "unmounted")
    assert find_missing(tmp_path, runs) is not None
