"""Whose are the runs of a home, and who may read their secrets?"""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

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


def test_a_secret_is_kept_as_long_as_its_run_has_a_directory(tmp_path: Path) -> None:
    book = ClaimBook(tmp_path)
    later = time.time() + KEPT_S + 60
    book.forget_gone(tmp_path / "runs", later)
    here, gone = make_order(), make_order()
    make_run_dir(tmp_path / "runs", here)
    for run in (here.run, gone.run):
        book.save(run, f"of {run}")
    for name in (f".{gone.run}.tmp", f".{here.run}.tmp"):
        (tmp_path / "claims" / name).write_text("of a write that was killed")
    book.forget_gone(tmp_path / "runs", time.time())
    assert book.load(gone.run) == f"of {gone.run}", "the runs may be mounted later"
    book.forget_gone(tmp_path / "runs", later)
    kept = sorted(path.name for path in (tmp_path / "claims").iterdir())
    assert kept == sorted([here.run, f".{here.run}.tmp"])
    assert book.load(here.run) == f"of {here.run}"


def test_a_run_of_another_machine_is_not_ours_to_end(tmp_path: Path) -> None:
    """On a shared home: its keeper lives elsewhere, and no lock of ours says so."""
    foreign, own = make_order(), make_order()
    mark_claimed(make_run_dir(tmp_path, foreign).path, THEIRS, "boot")
    mark_claimed(make_run_dir(tmp_path, own).path, OURS, "boot")
    assert [run.run for run in Inventory(tmp_path, OURS).open_runs()] == [own.run]
    assert len(Inventory(tmp_path).open_runs()) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine_id": 5}'])
def test_a_mark_that_cannot_be_read_leaves_the_run_ours(tmp_path: Path, text: str) -> None:
    order = make_order()
    (make_run_dir(tmp_path, order).path / CLAIMED_NAME).write_text(text)
    assert [run.run for run in Inventory(tmp_path, OURS).open_runs()] == [order.run]
