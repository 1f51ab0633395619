"""Whose are the runs of a home, and who may read their secrets?"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir
from tests.supervise.orders import make_order, make_run_dir
from worker.host.claim_book import CLAIMED_NAME, KEPT_S, ClaimBook, mark_claimed
from worker.host.inventory import Inventory

OURS, THEIRS = "a" * 32, "b" * 32


def test_a_secret_is_readable_by_its_owner_alone_and_lies_outside_the_run(tmp_path: Path) -> None:
    book = ClaimBook(tmp_path)
    assert book.load("run_1") is None
    book.save("run_1", "first")
    book.save("run_1", "second")
    assert book.load("run_1") == "second"
    (path,) = (tmp_path / "claims").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    book.save("run_1", None)
    assert book.load("run_1") is None


def test_a_secret_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is synced after it was given."""
    real, book, run = os.fsync, ClaimBook(tmp_path), make_order().run
    synced: list[tuple[str, list[str]]] = []

    def sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, sorted(os.listdir(path)) if path.is_dir() else []))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    book.save(run, "secret")
    assert synced == [(f".{run}.tmp", []), ("claims", [run])]


def test_a_secret_is_kept_as_long_as_its_run_has_a_directory(tmp_path: Path) -> None:
    book = ClaimBook(tmp_path)
    later = time.time() + KEPT_S + 60
    book.forget_gone(tmp_path / "runs", later)
    here, gone = make_order(), make_order()
    make_run_dir(tmp_path / "runs", here)
    for run in (here.run, gone.run):
        book.save(run, f"of {run}")
        book.save_order(run, here.document())
    for name in (f".{gone.run}.tmp", f".{here.run}.tmp"):
        (tmp_path / "claims" / name).write_text("of a write that was killed")
    book.forget_gone(tmp_path / "runs", time.time())
    assert book.load(gone.run) == f"of {gone.run}", "the runs may be mounted later"
    book.forget_gone(tmp_path / "runs", later)
    kept = sorted(path.name for path in (tmp_path / "claims").iterdir())
    assert kept == sorted([here.run, f".{here.run}.tmp", f"{here.run}.order.json"])
    assert book.load_order(here.run) == RunDir(tmp_path / "runs" / here.run).order.read_bytes()
    assert book.load_order(gone.run) is None
    assert book.load(here.run) == f"of {here.run}"


def test_a_secret_that_is_in_use_is_kept_however_long_ago_it_was_made(tmp_path: Path) -> None:
    """The runs of a run of weeks may be mounted late, or lie on another host's own disk."""
    book, used, unused = ClaimBook(tmp_path), make_order().run, make_order().run
    now = time.time()
    for run in (used, unused):
        book.save(run, f"of {run}")
        os.utime(tmp_path / "claims" / run, (now, now - 2 * KEPT_S))
    assert book.load(used) == f"of {used}"
    book.forget_gone(tmp_path / "runs", now)
    assert book.load(used) == f"of {used}"
    assert book.load(unused) is None


def test_a_secret_that_is_used_often_is_seldom_written_to(tmp_path: Path) -> None:
    book, run = ClaimBook(tmp_path), make_order().run
    book.save(run, "secret")
    path = tmp_path / "claims" / run
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    assert book.load(run) == "secret"
    assert path.stat().st_mtime == pytest.approx(an_hour_ago)


def test_a_disk_that_takes_nothing_keeps_no_secret_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, run = ClaimBook(tmp_path), make_order().run
    book.save(run, "secret")
    os.utime(tmp_path / "claims" / run, (0, 0))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(os, "utime", refuse)
    assert book.load(run) == "secret"


def test_a_run_of_another_machine_is_not_ours_to_end(tmp_path: Path) -> None:
    """On a shared home: its keeper lives elsewhere, and no lock of ours says so."""
    foreign, own = make_order(), make_order()
    mark_claimed(make_run_dir(tmp_path, foreign).path, THEIRS, "boot")
    mark_claimed(make_run_dir(tmp_path, own).path, OURS, "boot")
    assert [run.run for run in Inventory(tmp_path, OURS).open_runs()] == [own.run]
    assert len(Inventory(tmp_path).open_runs()) == 2


def test_of_a_mark_that_nobody_can_read_just_now_nobody_says_whose_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale handle, an error of the network: it may be another machine's, and live there."""
    order = make_order()
    mark_claimed(make_run_dir(tmp_path, order).path, THEIRS, "boot")
    opened = os.open

    def refuse(path: Any, *args: Any, **more: Any) -> int:
        if Path(path).name == CLAIMED_NAME:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)
    (run,) = Inventory(tmp_path, OURS).open_runs()
    assert (run.keeper, run.unseen is not None) == (None, True)
    monkeypatch.undo()
    assert Inventory(tmp_path, OURS).open_runs() == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine_id": 5}'])
def test_a_mark_that_cannot_be_read_leaves_the_run_ours(tmp_path: Path, text: str) -> None:
    order = make_order()
    (make_run_dir(tmp_path, order).path / CLAIMED_NAME).write_text(text)
    assert [run.run for run in Inventory(tmp_path, OURS).open_runs()] == [order.run]
