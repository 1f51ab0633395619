"""The demo as a newcomer runs it: GO, every number true, every decision replayable, no alert."""

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir, load_all_lines
from tests.e2e.lab import Receiver, beats, gonogo, read_json

PHASES = ["sanity", "synthetic", "smoke", "extended", "production"]


@dataclass(frozen=True, slots=True)
class Demo:
    """A finished demo, its service stopped."""

    home: Path
    code: int
    result: dict[str, Any]
    progress: str

    def run(self, phase: str) -> RunDir:
        """Return the run directory of a phase."""
        return RunDir(Path(next(r["dir"] for r in self.result["runs"] if r["phase"] == phase)))


@pytest.fixture(scope="module")
def demo(receiver: Receiver) -> Iterator[Demo]:
    home = Path(tempfile.mkdtemp(prefix="gonogo-demo-"))
    spoken = gonogo(home, "demo", "--json", "--webhook", receiver.url)
    assert spoken.stdout.count("\n") == 1, spoken.stderr
    yield Demo(home, spoken.code, spoken.json(), spoken.stderr)
    shutil.rmtree(home, ignore_errors=True)


def test_the_demo_goes_through_every_phase_to_go(demo: Demo) -> None:
    assert demo.code == 0, demo.progress
    assert "signed with whsec_" in demo.progress
    assert demo.result["verdict"] == "GO"
    assert [run["phase"] for run in demo.result["runs"]] == PHASES
    assert {run["verdict"] for run in demo.result["runs"]} == {"GO"}
    assert {run["outcome"]["code"] for run in demo.result["runs"]} == {"completed"}
    assert demo.result["outcome"] == {
        "code": "completed",
        "class": "success",
        "actor": "trainer",
        "text": demo.result["outcome"]["text"],
    }


def test_a_healthy_run_alerts_nobody_and_finds_nothing_that_halts(
    demo: Demo, receiver: Receiver
) -> None:
    assert receiver.received == []
    assert [row for row in demo.result["findings"] if row["severity"] == "halt"] == []


def test_every_rank_wrote_every_step(demo: Demo) -> None:
    order = read_json(demo.run("smoke").order)
    for rank in (0, 1):
        rows = beats(demo.run("smoke"), rank)
        assert [row["seq"] for row in rows] == list(range(rows[0]["seq"], rows[-1]["seq"] + 1))
        for msg in ("step_start", "progress", "step_end"):
            steps = [row["step"] for row in rows if row["msg"] == msg]
            assert steps == list(range(1, order["steps"] + 1))


def test_the_model_learns_on_real_text(demo: Demo) -> None:
    losses = [row["loss"] for row in beats(demo.run("production"), 0) if row["msg"] == "progress"]
    assert statistics.mean(losses[-10:]) < losses[0] - 1.0


def test_the_report_agrees_with_the_heartbeat_files(demo: Demo) -> None:
    text = Path(demo.result["report"]).read_text()
    assert "GO" in text
    for phase in PHASES:
        losses = [row["loss"] for row in beats(demo.run(phase), 0) if row["msg"] == "progress"]
        assert f"{losses[-1]:.4f}" in text, phase
    for run in demo.result["runs"]:
        assert run["id"] in text


def test_every_decision_replays_with_the_service_stopped(demo: Demo) -> None:
    assert len(demo.result["decisions"]) >= len(PHASES)
    for decision in demo.result["decisions"]:
        spoken = gonogo(demo.home, "replay", decision, "--json")
        assert spoken.code == 0, spoken.stdout + spoken.stderr
    assert gonogo(demo.home, "replay", demo.result["decisions"][-1], "--facts-only").code == 0


def test_a_run_directory_judges_itself_to_the_same_verdict(demo: Demo) -> None:
    spoken = gonogo(demo.home, "judge", str(demo.run("smoke").path), "--json")
    assert spoken.code == 0, spoken.stderr
    judged = spoken.json()
    recorded = next(
        read_json(path)
        for path in (Path(demo.result["home"]) / "decisions").glob("*.json")
        if read_json(path)["phase"] == "smoke"
    )
    assert judged["verdict"] == "GO"
    assert judged["facts_digest"] == recorded["facts_digest"]
    assert judged["rule_digest"] == recorded["rule_digest"]


def test_one_loss_changed_by_hand_is_named(demo: Demo, tmp_path: Path) -> None:
    home = tmp_path / "copy"
    shutil.copytree(demo.result["home"], home, ignore=shutil.ignore_patterns("checkpoints"))
    smoke = next(run for run in demo.result["runs"] if run["phase"] == "smoke")
    file = RunDir(home / "runs" / smoke["id"]).heartbeat(1)
    lines = [json.loads(line) for line in load_all_lines(file)]
    changed = next(row for row in lines if row["msg"] == "progress" and row["step"] == 17)
    changed["loss"] += 1e-6
    file.write_text("".join(json.dumps(row) + "\n" for row in lines))
    decision = next(
        path
        for path in (home / "decisions").glob("*.json")
        if read_json(path).get("run") == smoke["id"]
    )
    spoken = gonogo(demo.home, "replay", str(decision), "--json")
    assert spoken.code == 1
    answer = spoken.json()
    assert not answer["equal"]
    assert "heartbeat" in json.dumps(answer) or "rank" in json.dumps(answer)
