"""The keeper knows whether the disk took what a rank said last."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gonogo.supervise.keeper import refusals as keeper_refusals
from gonogo.supervise.keeper.refusals import TRY_EVERY_S, Refusals
from gonogo.trainer.line_file import LAST_S


@pytest.mark.parametrize(
    ("ended", "met"),
    [
        (99.0, False),
        (100.0 + LAST_S, True),
        (100.0 + 2 * LAST_S, True),
        (101.0 + 4 * LAST_S, False),
    ],
    ids=["before", "while it refused", "just after", "long after"],
)
def test_a_disk_that_refuses_for_a_while_may_have_kept_last_words(
    ended: float, met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, began = 0.0, 100.0 + TRY_EVERY_S
    monkeypatch.setattr(keeper_refusals.time, "time", lambda: 100.0 + now)
    folder = tmp_path / "disk"
    refusals = Refusals(folder / "tried")
    assert not refusals.met(began)
    while now < 5 * LAST_S:
        (folder.rmdir if folder.exists() else lambda: None)()
        if not TRY_EVERY_S <= now < 2 * LAST_S:
            folder.mkdir()
        refusals.tend(now)
        now += TRY_EVERY_S / 2
    assert refusals.met(ended) is met


def test_what_a_trainer_has_put_in_the_way_is_neither_followed_nor_waited_for(
    tmp_path: Path,
) -> None:
    """A link would have what it leads to written over, and of a pipe the keeper would hang."""
    tried, kept = tmp_path / "tried", tmp_path / "checkpoint"
    kept.write_text("all of it")
    refusals = Refusals(tried)
    for now, put in ((0.0, lambda: tried.symlink_to(kept)), (60.0, lambda: os.mkfifo(tried))):
        put()
        refusals.tend(now)
        assert not refusals.met(time.time()), "the disk took it"
        assert kept.read_text() == "all of it"
        assert os.listdir(tmp_path) == [kept.name]


def test_a_folder_in_the_way_says_nothing_of_the_disk(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    tried.mkdir()
    refusals = Refusals(tried)
    refusals.tend(0.0)
    assert not refusals.met(time.time())
    assert tried.is_dir()
