"""Which runs are open, and what does a directory have to show for it?"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import save_json
from tests.supervise.orders import make_order, make_run_dir
from worker.host.open_runs import RunInventory


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


@pytest.mark.parametrize("refused", ["", "order.json", ".shipped"])
def test_a_run_that_cannot_be_looked_at_is_open_whatever_python_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Since Python 3.14 `Path.exists` says no of it, and the run was given out again."""
    run_dir, look = make_run_dir(tmp_path, make_order()), os.stat

    def refuse(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(run_dir.path / refused)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(path, **more)

    monkeypatch.setattr(os, "stat", refuse)
    for name in ("exists", "isdir"):
        asked = getattr(os.path, name)
        monkeypatch.setattr(
            Path, name.replace("isdir", "is_dir"), lambda path, ask=asked: ask(path)
        )
    assert not run_dir.order.exists() or refused == ".shipped"
    (found,) = RunInventory(tmp_path, "here").open_runs()
    assert found.unread is not None
    monkeypatch.undo()
    (found,) = RunInventory(tmp_path, "here").open_runs()
    assert found.unread is None
