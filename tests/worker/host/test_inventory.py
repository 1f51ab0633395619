"""Which runs are open, and what does a directory have to show for it?"""

from __future__ import annotations

from pathlib import Path

from gonogo.rundir import save_json
from tests.supervise.orders import make_order, make_run_dir
from worker.host.inventory import Inventory


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
