"""Attached trainers under the real keeper and watcher: to their end, halted, hung, mistaken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.judge.directory import judge_directory
from gonogo.rundir import RunDir, load_all_lines
from tests.trainer.runs import lines_of, steps_of, write_order
from tests.trainer.supervision import entry, kept, wait_for_end

WATCH = {
    "stall": {"suspect_s": 1, "halt_s": 2.5, "halt_x": 8, "min_steps": 3},
    "alive_lost": {"suspect_s": 10, "halt_s": 20},
}
ALONE: dict[str, Any] = {
    "entry": entry("alone"),
    "steps": 20,
    "train": {"step_s": 0.05},
    "identity": {"params": 1000, "world_size": 1, "tokens_per_step": 1000, "nsa_env": {}},
    "watch": WATCH,
    "heartbeat": {"alive_every_s": 0.3},
    "halt": {"grace_s": 1},
}


def halts(run: Path) -> list[Finding]:
    found = [Finding.model_validate_json(line) for line in load_all_lines(RunDir(run).findings)]
    return [row for row in found if row.severity is Severity.HALT]


@pytest.mark.long
def test_a_healthy_run_is_let_begin_and_passes_all_that_was_looked_at(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", go=False, **ALONE)
    with kept(run, "alone") as keeper:
        ended = wait_for_end(keeper, run)
    assert (ended.reason, ended.ended_by, ended.code) == ("completed", "trainer", 0)
    assert steps_of(lines_of(run), "step_end") == list(range(1, 21))
    assert halts(run) == []
    criteria = judge_directory(run)["criteria"]
    passed = [row["id"] for row in criteria if row["outcome"] == "pass"]
    assert passed == ["completed", "identity", "coverage", "no_halt_finding"]


def test_a_hang_is_ended_in_its_step_and_section_with_stacks_as_evidence(tmp_path: Path) -> None:
    asked = {"step_s": 0.05, "hang_at": 8, "section": "forward"}
    run = write_order(tmp_path / "run", go=False, **{**ALONE, "train": asked})
    with kept(run, "alone") as keeper:
        ended = wait_for_end(keeper, run)
    assert (ended.reason, ended.ended_by) == ("stalled", "watchdog")
    (found, *_) = halts(run)
    assert (found.detector, found.rank, found.step, found.section) == ("stall", 0, 8, "forward")
    dumps = [path.read_text() for path in run.glob("stackdump_rank0_*.txt")]
    dumps += [path.read_text() for path in run.glob(".stackdump_rank0.txt")]
    assert any("in hang" in text for text in dumps), "it answered when it was asked for its stacks"
