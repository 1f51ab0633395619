"""Somebody's own scripts under the service: attached, unchanged, and not allowed."""

import sys
from pathlib import Path
from typing import Any

import pytest

from gonogo.rundir import RunDir
from tests.e2e.lab import Lab, beats, gonogo

ENVIRON = {"GONOGO_WORKER_ALLOW": sys.executable, "GONOGO_WORKER_ALLOW_ENV": "MY_STEPS"}

ATTACHED = """
import os
import gonogo.trainer

with gonogo.trainer.attach(identity={"params": 1000}) as beat:
    print("in", os.getcwd(), "RANK" in os.environ)
    for step in range(1, int(os.environ["MY_STEPS"]) + 1):
        beat.step(loss=5 - step / 50, tokens=64)
        if beat.should_halt():
            break
"""
GATE = {"id": "finite", "metric": "loss", "aggregate": "all_finite"}
UNCHANGED = """
import time

for step in range(20):
    time.sleep(0.05)
    print(f"iter {step}: loss {5 - step / 50:.4f}")
"""


def plan(folder: Path, code: str, **changes: Any) -> dict[str, Any]:
    """A plan of one phase whose command is a script in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    command = [sys.executable, "train.py"]
    return {
        "v": 1,
        "name": "mine",
        "profile": "cpu",
        "workload": {"command": command, "cwd": str(folder), "env": {"MY_STEPS": "20"}},
        "train": {"lr": 0.1},
        "phases": [{"name": "try", "steps": 20, "gate": [GATE]}],
        **changes,
    }


def run_dir(lab: Lab, experiment: str) -> RunDir:
    run = lab.run_of(experiment)
    assert run is not None
    assert run.dir is not None
    return RunDir(Path(run.dir))


def test_an_attached_script_goes_in_its_own_folder(lab: Lab, tmp_path: Path) -> None:
    experiment = lab.submit(plan(tmp_path / "mine", ATTACHED, identity={"params": 1000}))
    view = lab.wait_for_end(experiment)
    assert view.verdict == "GO", view
    found = run_dir(lab, experiment)
    assert f"in {tmp_path / 'mine'} False" in (found.path / "rank0.log").read_text()
    assert [row["step"] for row in beats(found, 0) if row["msg"] == "step_end"][-1] == 20


@pytest.mark.long
def test_an_unchanged_script_is_conditional_by_what_is_waived(lab: Lab, tmp_path: Path) -> None:
    waive = ["identity", "coverage"]
    experiment = lab.submit(plan(tmp_path / "mine", UNCHANGED, waive=waive))
    view = lab.wait_for_end(experiment)
    assert view.verdict == "CONDITIONAL_GO", view
    assert {row.criterion: row.state for row in view.conditions} == dict.fromkeys(waive, "waived")


def test_what_no_worker_allows_waits_and_says_why(lab: Lab, tmp_path: Path) -> None:
    mine = plan(tmp_path / "mine", ATTACHED)
    mine["workload"]["command"] = ["/usr/bin/env", "true"]
    answer = lab.client.post("/experiments", {"plan": mine, "name": "waits"})
    (warning,) = answer["warnings"]
    assert "GONOGO_WORKER_ALLOW=/usr/bin/env" in warning
    view = lab.client.experiment(answer["id"])
    assert view.state == "queued"
    assert any("GONOGO_WORKER_ALLOW" in step.text for step in view.next)
    lab.client.post(f"/experiments/{answer['id']}/cancel", {"reason": "seen"})


@pytest.mark.long
def test_the_reason_of_a_failed_launch_is_quoted_wherever_one_looks(
    lab: Lab, tmp_path: Path
) -> None:
    mine = plan(tmp_path / "mine", ATTACHED)
    mine["workload"]["command"] = [sys.executable, "absent.py"]
    experiment = lab.submit(mine)
    view = lab.wait_for_end(experiment)
    assert (view.verdict, view.cause and view.cause.log) == ("NO_GO", "rank0.log"), view
    why = f"can't open file '{tmp_path / 'mine' / 'absent.py'}'"
    assert view.cause is not None
    assert view.cause.line is not None
    assert why in view.cause.line
    home = lab.stack.settings.home
    assert why in gonogo(home, "show", experiment).stdout
    assert why in gonogo(home, "watch", experiment).stdout
    assert why in gonogo(home, "alerts", "--json").stdout
    assert why in gonogo(home, "logs", experiment, "--rank", "0").stdout
