"""What `gonogo run` shows while a run is active."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.cli.judging import directory_evidence
from gonogo.cli.run_host import Pace, RunProgress
from gonogo.rundir import RunDir
from tests.cli.test_run_advice import order_of


def test_the_rest_is_told_by_the_steps_that_were_seen_and_not_by_the_start() -> None:
    pace = Pace()
    assert pace.tell(1, 30, 40.0) == "step 1 of 30", "forty seconds of start say nothing of a step"
    assert pace.tell(11, 30, 50.0) == "step 11 of 30, about 19 s left"
    assert pace.tell(11, 30, 110.0).endswith(", about 19 s left, no step for 1 min 00 s")


def test_without_a_last_step_nothing_is_left() -> None:
    pace = Pace()
    pace.tell(1, None, 0.0)
    assert pace.tell(5, None, 4.0) == "step 5"


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


def test_the_place_of_the_ranks_is_read_from_their_stacks(tmp_path: Path) -> None:
    stacks = RunDir(tmp_path).evidence / "02_stall"
    stacks.mkdir(parents=True)
    for rank, frame in enumerate(
        ("all_reduce (torch/distributed/distributed_c10d.py:3)", "f (t.py:6)")
    ):
        (stacks / f"stacks_rank{rank}.txt").write_text(f"MainThread (thread 7)\n    {frame}\n")
    where = directory_evidence(tmp_path)[0]
    assert where == "rank 1 is in f (t.py:6), user code; rank 0 waits in all_reduce"
    assert directory_evidence(tmp_path / "other") == []
