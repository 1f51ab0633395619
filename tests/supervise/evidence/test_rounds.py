"""A round of evidence: every file is there, whatever its collector met."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from gonogo.supervise.evidence.rounds import LOG_LINES, Evidence, Round, Target
from gonogo.supervise.evidence.stacks import StackReader
from tests.supervise.runs import no_threads


def finished(found: Round | None) -> Round:
    assert found is not None
    for thread in found.threads:
        thread.join(20)
    assert not found.is_running()
    return found


def test_round_names_its_files_beforehand_and_writes_each(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.rank_log(0).write_text("".join(f"line {n}\n" for n in range(2 * LOG_LINES)))
    targets = {0: Target(rank=0, pid=os.getpid()), 1: Target(rank=1, pid=None)}
    found = finished(Evidence(run_dir).start_round("stall", targets, 0.0))
    assert all((tmp_path / path).is_file() for path in found.paths)
    assert all(path.startswith("evidence/01_stall/") for path in found.paths)
    folder = tmp_path / "evidence" / "01_stall"
    log = (folder / "log_rank0.txt").read_text().splitlines()
    assert (len(log), log[-1]) == (LOG_LINES, f"line {2 * LOG_LINES - 1}")
    assert "State:" in (folder / "proc_rank0.txt").read_text()
    assert not (folder / "stacks_rank1.txt").exists()


@pytest.mark.parametrize("own", ["2026-11-23_profile", "2026_profile", "99_mine", "1a_b", "3_x"])
def test_a_trainers_own_folder_is_no_round(tmp_path: Path, own: str) -> None:
    (tmp_path / "evidence" / own).mkdir(parents=True)
    targets = {0: Target(rank=0, pid=None)}
    for number in (1, 2):  # another watcher takes over after the first
        found = finished(Evidence(RunDir(tmp_path)).start_round("stall", targets, 0.0))
        assert found.number == number


def test_collector_that_fails_leaves_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(StackReader, "read", fail)
    evidence = Evidence(RunDir(tmp_path))
    finished(evidence.start_round("stall", {0: Target(rank=0, pid=os.getpid())}, 0.0))
    text = (tmp_path / "evidence" / "01_stall" / "stacks_rank0.txt").read_text()
    assert "no luck" in text


def test_where_no_thread_is_to_be_had_a_round_says_so_and_is_over(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.rank_log(0).write_text("line\n")
    with no_threads():
        found = Evidence(run_dir).start_round("stall", {0: Target(rank=0, pid=os.getpid())}, 0.0)
    assert found is not None
    assert not found.is_running()
    assert all("no thread can be started" in (tmp_path / path).read_text() for path in found.paths)
