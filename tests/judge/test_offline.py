"""`gonogo judge DIR`: a directory judges itself, and says what it cannot show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Decision
from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.plan_source import bundled_plan
from gonogo.judge.offline import judge_directory
from gonogo.judge.record import load_run
from tests.data import make_runs
from tests.data.make_runs import CONFIG, EPOCH
from tests.judge.conftest import CopyRun

PLAN = {**bundled_plan("m7c-125m")}


@pytest.fixture(autouse=True)
def _configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration of the tests' own stands for those of the trainer."""
    monkeypatch.setattr("gonogo.judge.offline.load_train_config", lambda name: CONFIG)


OURS = [
    ("healthy", "GO", None, []),
    ("stalled", "NO_GO", "hang_in_compute", [("stall", 1, "backward")]),
    ("non_finite", "NO_GO", "non_finite_loss", [("non_finite", None, None)]),
]


@pytest.mark.parametrize(("name", "verdict", "diagnosis", "halts"), OURS)
def test_our_directories(
    name: str, verdict: str, diagnosis: str | None, halts: list[Any], copy_run: CopyRun
) -> None:
    found = judge_directory(copy_run(name))
    assert (found["verdict"], found["diagnosis"]) == (verdict, diagnosis)
    told = [(row["detector"], row["rank"], row["section"]) for row in found["findings"]
            if row["severity"] == "halt"]  # fmt: skip
    assert told == halts
    assert Decision.model_validate(found).content_hash() == found["hash"]


PREDECESSOR = [
    ("predecessor_healthy", None, "INCONCLUSIVE"),
    ("predecessor_toy", None, "INCONCLUSIVE"),
    ("predecessor_stalled", None, "INCONCLUSIVE"),
    ("predecessor_healthy", "smoke", "INCONCLUSIVE"),
    ("predecessor_toy", "smoke", "INCONCLUSIVE"),
    ("predecessor_stalled", "smoke", "NO_GO"),
]


@pytest.mark.parametrize(("name", "phase", "verdict"), PREDECESSOR)
def test_the_predecessor_s_directories_are_never_go_for_lack_of_evidence(
    name: str, phase: str | None, verdict: str, copy_run: CopyRun
) -> None:
    plan = PLAN if phase else None
    found = judge_directory(copy_run(name), plan, phase)
    assert found["verdict"] == verdict
    outcomes = {row["id"]: row["outcome"] for row in found["criteria"]}
    assert "pass" not in outcomes.values() or phase
    topics = {text.partition(":")[0] for text in found["not_observed"]}
    assert {"identity", "coverage", "sections", "preflight", "end", "step_start"} <= topics
    assert any("every 20 steps" in text for text in found["not_observed"])
    if phase:
        assert "rank 1" in topics


@pytest.mark.parametrize("name", ["predecessor_healthy", "predecessor_toy"])
def test_with_neither_order_nor_plan_completed_is_inconclusive(
    name: str, copy_run: CopyRun
) -> None:
    found = judge_directory(copy_run(name), now=EPOCH + 10**8)
    outcomes = {row["id"]: row["outcome"] for row in found["criteria"]}
    assert outcomes["completed"] == "inconclusive"


def test_a_predecessor_that_reached_the_last_step_is_not_called_silent(copy_run: CopyRun) -> None:
    found = judge_directory(copy_run("predecessor_healthy"), PLAN, "smoke", now=EPOCH + 10**8)
    assert found["findings"] == []


STALLED_AT = 11.3 + 160 * 107.8
LIMIT_S = 8 * 20 * 107.8


@pytest.mark.parametrize(("after_s", "found"), [(LIMIT_S - 60, False), (LIMIT_S + 60, True)])
def test_a_predecessor_stalls_after_eight_of_its_own_intervals_whatever_beats_it_wrote(
    after_s: float, found: bool, copy_run: CopyRun
) -> None:
    now = EPOCH + STALLED_AT + after_s
    findings = judge_directory(copy_run("predecessor_stalled"), PLAN, "smoke", now=now)["findings"]
    assert [row["detector"] for row in findings] == (["stall"] if found else [])
    if found:
        assert (findings[0]["rank"], findings[0]["step"]) == (0, 160)


def test_a_predecessor_s_loss_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    lines = make_runs.predecessor_lines(steps=100, step_s=1.0, tok_s=38.0, log_every=20)
    lines[4]["loss"] = float("nan")
    make_runs.save_lines(tmp_path / "run", lines)
    found = judge_directory(tmp_path / "run")
    assert [row["detector"] for row in found["findings"]] == ["non_finite"]
    assert found["verdict"] == "NO_GO"


def cut(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Leave a directory as it was when its host went away."""
    (folder / "exit.json").unlink()
    for file in folder.glob("heartbeat_rank*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if keep(json.loads(line))))


@pytest.mark.parametrize(("after_s", "verdict"), [(5.0, "INCONCLUSIVE"), (100.0, "NO_GO")])
@pytest.mark.parametrize("watched", [True, False])
def test_an_unfinished_run_is_judged_at_the_time_that_is_asked(
    after_s: float, verdict: str, watched: bool, copy_run: CopyRun
) -> None:
    folder = copy_run("healthy")
    cut(folder, lambda line: line["step"] < 8)
    if not watched:
        (folder / "watch.jsonl").unlink()
        (folder / "findings.jsonl").unlink()
    last = max(beat.ts for row in load_run(folder).streams.values() for beat in row.beats)
    found = judge_directory(folder, now=last + after_s)
    assert found["verdict"] == verdict
    assert any(text.startswith("end:") for text in found["not_observed"])


def test_the_clock_of_a_run_that_arrived_stops_at_its_last_line(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    cut(folder, lambda line: True)
    found = judge_directory(folder, now=EPOCH + 10**8)
    assert (found["verdict"], found["findings"]) == ("INCONCLUSIVE", [])


def test_our_lines_without_an_order_show_nothing_that_was_asked_for(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    (folder / "order.json").unlink()
    found = judge_directory(folder)
    assert found["verdict"] == "INCONCLUSIVE"
    assert any(text.startswith("order:") for text in found["not_observed"])


def test_a_plan_and_a_phase_stand_for_a_missing_order(copy_run: CopyRun, tmp_path: Path) -> None:
    folder = copy_run("healthy")
    (folder / "order.json").unlink()
    plan = tmp_path / "plan.yaml"
    sets = {**bundled_plan("demo"), "name": "other"}
    for row in sets["phases"]:
        row["steps"] = make_runs.STEPS
    plan.write_text(json.dumps(wire_value(sets)))
    found = judge_directory(folder, str(plan), "smoke")
    outcomes = {row["id"]: row["outcome"] for row in found["criteria"]}
    assert (outcomes["completed"], outcomes["coverage"]) == ("pass", "pass")
    assert found["verdict"] == "GO"


def test_an_unreadable_line_is_said(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    with (folder / "heartbeat_rank0.jsonl").open("ab") as stream:
        stream.write(b"\xff\xfe\n")
    texts = judge_directory(folder)["not_observed"]
    assert "rank 0: 1 lines cannot be read" in texts


def test_bad_input_is_refused_with_what_to_do(copy_run: CopyRun, tmp_path: Path) -> None:
    folder = copy_run("predecessor_healthy")
    with pytest.raises(Rejected, match="--phase"):
        judge_directory(folder, "m7c-125m")
    with pytest.raises(NotFound, match="no plan"):
        judge_directory(folder, "nonsense", "smoke")
    with pytest.raises(NotFound, match="no phase"):
        judge_directory(folder, "m7c-125m", "nonsense")
    with pytest.raises(NotFound, match="no such file"):
        judge_directory(folder, str(tmp_path / "no.yaml"), "smoke")
    with pytest.raises(NotFound, match="neither"):
        judge_directory(tmp_path)
