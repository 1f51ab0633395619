"""`gonogo judge DIR`: a directory judges itself, and says what it cannot show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.order import RunReason
from gonogo.judge.directory import judge_directory
from gonogo.ledger.recorded import record_of
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.planning.source import bundled_plan
from tests.data import make_runs
from tests.judge.conftest import CopyRun

PLAN = {**bundled_plan("m7c-125m")}


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
    assert record_of(found).seals() is None


PREDECESSOR = [
    ("predecessor_healthy", None, "INCONCLUSIVE"),
    ("predecessor_toy", None, "INCONCLUSIVE"),
    ("predecessor_healthy", "smoke", "NO_GO"),
    ("predecessor_toy", "smoke", "NO_GO"),
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
    doubts = [(row["kind"], row.get("name")) for row in found["facts"]["doubts"]]
    topics = {name for kind, name in doubts if kind == "predecessor"}
    assert topics == {"identity", "coverage", "single steps"}
    missing = {name for kind, name in doubts if kind == "record_missing"}
    assert {"preflight.json", "exit.json"} <= missing
    assert ("rank_silent" in dict(doubts)) is bool(phase)


def test_a_predecessor_s_loss_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    lines = make_runs.predecessor_lines(steps=100, step_s=1.0, tok_s=38.0, log_every=20)
    lines[4]["loss"] = float("nan")
    make_runs.save_lines(tmp_path / "run", lines)
    found = judge_directory(tmp_path / "run", PLAN, "smoke")
    assert "non_finite" in [row["detector"] for row in found["findings"]]
    assert found["verdict"] == "NO_GO"


def cut(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Leave a directory as it was when its host went away."""
    for file in folder.glob("exit*.json"):
        file.unlink()
    ticks = (folder / "watch.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "watch.jsonl").write_bytes(b"".join(ticks[:-1]))
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
    lines = [line for file in folder.glob("heartbeat*") for line in file.read_text().splitlines()]
    last = max(json.loads(line)["ts"] for line in lines)
    found = judge_directory(folder, now=last + after_s)
    assert found["verdict"] == verdict
    assert "exit.json: it is missing" in found["not_observed"]


def test_a_plan_and_a_phase_stand_for_a_missing_order(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    (folder / "order.json").unlink()
    sets = {**bundled_plan("demo"), "name": "other", "train": make_runs.CONFIG}
    sets["workload"]["entry"] = "their.trainer"
    for row in sets["phases"]:
        row["steps"] = make_runs.STEPS
    found = judge_directory(folder, sets, "smoke")
    outcomes = {row["id"]: row["outcome"] for row in found["criteria"]}
    assert (outcomes["finite"], outcomes["coverage"]) == ("pass", "pass")
    assert found["verdict"] == "INCONCLUSIVE", "an order that is gone is evidence that is gone"


def test_bad_input_is_refused_with_what_to_do(copy_run: CopyRun, tmp_path: Path) -> None:
    folder = copy_run("predecessor_healthy")
    with pytest.raises(Rejected, match="--phase"):
        judge_directory(folder, PLAN)
    with pytest.raises(NotFound, match="no phase nonsense; expected one of extended, production"):
        judge_directory(folder, PLAN, "nonsense")
    with pytest.raises(NotFound, match="neither"):
        judge_directory(tmp_path)


RERUNS = [
    ("first", False, "GO", []),
    ("resume", False, "GO", []),
    ("rerun", False, "GO", []),
    ("takeover", False, "GO", []),
    ("campaign", False, "GO", []),
    ("confirm", False, "CONDITIONAL_GO", ["reproduced"]),
    ("remedy", False, "CONDITIONAL_GO", ["remedied"]),
    ("confirm", True, "INCONCLUSIVE", []),
    ("remedy", True, "INCONCLUSIVE", []),
    ("first", True, "INCONCLUSIVE", []),
]


def save_rerun(folder: Path, reason: str, *, bounded: bool) -> Path:
    """A run that went to its last ordered step; a bounded one ends before its phase."""
    order = make_runs.order_of().model_copy(update={"reason": RunReason(reason)})
    if bounded:
        order = order.model_copy(update={"steps": 8, "gate": []})
    ranks = make_runs.healthy_ranks(order)
    make_runs.save_run(folder, order, ranks, make_runs.exit_of(ranks))
    return folder


@pytest.mark.parametrize(("reason", "bounded", "verdict", "conditions"), RERUNS)
def test_no_rerun_passes_by_itself_as_if_nothing_had_failed_before_it(
    reason: str, bounded: bool, verdict: str, conditions: list[str], tmp_path: Path
) -> None:
    folder = save_rerun(tmp_path / "run", reason, bounded=bounded)
    found = judge_directory(folder)
    assert found["verdict"] == verdict
    assert [row["criterion"] for row in found["conditions"]] == conditions
    again = replay_decision(record_of(found), Surroundings(run_dir=folder))
    assert again.equal, again.text
