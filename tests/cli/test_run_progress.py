"""What `gonogo run` shows while a run is active."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.cli.judging import directory_evidence
from gonogo.cli.run_host import Remainder, RunProgress
from gonogo.rundir import RunDir
from tests.cli.test_run_advice import order_of


def test_the_rest_is_told_by_the_steps_that_were_seen_and_not_by_the_start() -> None:
    pace = Remainder()
    assert pace.tell(1, 30, 40.0) == "", "forty seconds of start say nothing of a step"
    assert pace.tell(11, 30, 50.0) == ", about 19 s left"


def test_a_run_that_stands_has_no_longer_a_way_to_go_for_that() -> None:
    pace = Remainder()
    pace.tell(1, 24, 0.0)
    assert pace.tell(12, 24, 11.0) == ", about 12 s left"
    assert pace.tell(12, 24, 71.0) == ", about 12 s left, no step for 1 min 00 s"


def test_without_a_last_step_nothing_is_left() -> None:
    pace = Remainder()
    pace.tell(1, None, 0.0)
    assert pace.tell(5, None, 4.0) == ""


@pytest.mark.parametrize(
    ("printed", "shown"),
    [("", ""), ("done\n", "done\n"), ("done", "done\n"), ("\r100%", "\r100%\n"), ("\r", "\r\n")],
)
def test_the_closing_lines_begin_on_a_line_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, shown: str
) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.rank_log(0).write_text(printed, newline="")
    with (tmp_path / "stdout").open("w+", newline="") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        progress = RunProgress(run_dir, order_of(), quiet=False)
        progress.look()
        progress.end_line()
    assert (tmp_path / "stdout").read_bytes().decode() == shown


def test_a_step_that_is_suspected_to_hang_is_told_with_the_place_of_its_ranks(
    tmp_path: Path,
) -> None:
    pace = Remainder()
    pace.tell(31, 200, 0.0)
    assert pace.tell(31, 200, 40.0, "") == ", looks hung for 40 s"
    stacks = RunDir(tmp_path).evidence / "02_stall"
    stacks.mkdir(parents=True)
    for rank, frame in enumerate(
        ("all_reduce (torch/distributed/distributed_c10d.py:3)", "f (t.py:6)")
    ):
        (stacks / f"stacks_rank{rank}.txt").write_text(f"MainThread (thread 7)\n    {frame}\n")
    where = directory_evidence(tmp_path)[0]
    assert where == "rank 1 is in f (t.py:6), user code; rank 0 waits in all_reduce"
    assert pace.tell(31, 200, 50.0, where) == f", looks hung for 50 s: {where}"
    assert directory_evidence(tmp_path / "other") == []
