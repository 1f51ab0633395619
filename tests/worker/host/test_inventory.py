"""Which runs are open, and what does a directory have to show for it?"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import save_json
from gonogo.supervise.given_up import REFUSED_NAME, load_refusal
from tests.supervise.orders import make_order, make_run_dir
from worker.host.claim_book import CLAIMED_NAME
from worker.host.inventory import Inventory
from worker.shipping.acknowledged import Reported, load_reported


def test_a_run_is_open_until_it_is_shipped(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path / "runs")
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
    assert Inventory(runs).open_runs() == []


def test_a_keeper_record_that_is_torn_is_no_living_keeper(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, make_order())
    for text in ("", "{", "[]", '{"pid": "x", "start_ticks": 1}', '{"pid": 1}'):
        (run_dir.path / "keeper.json").write_text(text)
        assert Inventory(tmp_path).open_runs()[0].keeper is None


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
    (found,) = Inventory(tmp_path, "here").open_runs()
    assert found.unseen is not None
    monkeypatch.undo()
    (found,) = Inventory(tmp_path, "here").open_runs()
    assert found.unseen is None


@pytest.mark.parametrize("name", ["keeper.json", CLAIMED_NAME, REFUSED_NAME, ".reported.json"])
def test_a_pipe_under_a_record_s_name_holds_no_worker(name: str, tmp_path: Path) -> None:
    """A trainer writes to its run's directory, and the worker looks after every run of the host."""
    run_dir = make_run_dir(tmp_path, make_order())
    os.mkfifo(run_dir.path / name)
    look = (
        "import sys; from pathlib import Path; from worker.host.inventory import Inventory;"
        "from gonogo.supervise.given_up import load_refusal;"
        "from worker.shipping.acknowledged import load_reported;"
        "(found,) = Inventory(Path(sys.argv[1]), 'm').open_runs();"
        "assert found.keeper is None and found.unseen is None;"
        "load_refusal(found.path); load_reported(found.path)"
    )
    subprocess.run([sys.executable, "-c", look, tmp_path], timeout=30.0, check=True)


@pytest.mark.parametrize("name", ["keeper.json", CLAIMED_NAME, REFUSED_NAME, ".reported.json"])
def test_a_terabyte_under_a_record_s_name_ends_no_round(name: str, tmp_path: Path) -> None:
    """A trainer's `truncate` takes no room: the worker claimed and ended nothing any more."""
    run_dir = make_run_dir(tmp_path, make_order())
    with (run_dir.path / name).open("wb") as stream:
        stream.truncate(2**40)
    (found,) = Inventory(tmp_path, "m").open_runs()
    assert (found.keeper, found.unseen) == (None, None)
    assert load_refusal(found.path) is None
    assert load_reported(found.path) == Reported()
