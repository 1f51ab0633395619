"""What comes of a failure: a rerun from before it, a bounded answer, and the phase's own end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.api import ExperimentView, RunView
from gonogo.judge.directory import judge_directory
from gonogo.ledger.recorded import parse_decision
from gonogo.rundir import RunDir
from service.experiments.lifecycle import decision_text
from tests.data.make_runs import WHOLE_GATE
from tests.e2e.lab import Lab, beats, gonogo, one_phase_plan, read_json

LOGGING = {"NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1", "NSA_DISABLE_AUX_STATS": "0"}


def long_plan(**changes: Any) -> dict[str, Any]:
    """Return one phase of 160 steps with a checkpoint every tenth, on two ranks that log."""
    cadence = {"every_steps": 10, "every_s": 600}
    plan = one_phase_plan(
        steps=160, checkpoint=cadence, env=LOGGING, gate=WHOLE_GATE, data="synthetic"
    )
    plan["train"] |= {"model": {"layers": 1, "seq_len": 64}, "params": 908_056}
    plan["train"]["eval"] = {"every_steps": 0}
    return {**plan, **changes}


def folder_of(run: RunView) -> RunDir:
    return RunDir(Path(str(run.dir)))


def pid_of(run: RunView, rank: int) -> int:
    """Return the process of a rank, as its heartbeats name it."""
    return int(beats(folder_of(run), rank)[-1]["pid"])


def runs_of(lab: Lab, view: ExperimentView) -> list[RunView]:
    return [lab.client.run(name) for phase in view.phases for name in phase.runs]


def said_of(lab: Lab, view: ExperimentView) -> list[str]:
    """Return what each run came to, and what kept it from passing."""
    found = []
    for run in runs_of(lab, view):
        document = judge_directory(Path(str(run.dir)))
        wrong = [row["evidence"] for row in document["criteria"] if row["outcome"] != "pass"]
        found.append(f"{run.reason} {run.verdict} {wrong}")
    return found


@pytest.mark.long
def test_a_hang_that_does_not_come_again_is_a_condition(lab: Lab) -> None:
    confirm = {"on": ["stall", "alive_lost", "section_deadline"], "variants": []}
    experiment = lab.submit(long_plan(confirm=confirm))
    run = lab.wait_for_step(experiment, 25)
    os.kill(pid_of(run, 1), signal.SIGSTOP)
    view = lab.wait_for_end(experiment)
    assert (view.state, view.verdict) == ("finished", "CONDITIONAL_GO"), said_of(lab, view)
    assert [row.id for row in view.conditions] == ["smoke:reproduced"]
    failed, again = runs_of(lab, view)
    assert failed.outcome is not None
    assert (failed.outcome.code, failed.verdict) == ("stalled", "NO_GO")
    halts = [r for r in lab.client.pages(f"/runs/{failed.id}/findings") if r["severity"] == "halt"]
    assert halts[0]["rank"] == 1
    order = read_json(folder_of(again).order)
    assert (order["reason"], order["steps"]) == ("confirm", 160)
    began = order["resume_from"]
    assert halts[0]["step"] - 10 <= began["step"] < halts[0]["step"]
    assert began["path"].startswith(str(failed.dir))
    assert order["train"] == read_json(folder_of(failed).order)["train"]
    (decision,) = lab.client.get(f"/experiments/{view.id}/decisions")["items"]
    assert (decision["run"], decision["phase"]) == (again.id, "smoke")
    told = {row["id"]: row["evidence"] for row in decision["criteria"]}
    assert told["reproduced"] == "not reproduced: failed in 1 of 2 unchanged runs"
    spoken = gonogo(lab.stack.home, "replay", decision["id"])
    assert spoken.code == 0, spoken.stderr


@pytest.mark.long
def test_a_killed_peer_is_named_with_its_last_line_in_verdict_show_and_alert(lab: Lab) -> None:
    experiment = lab.submit(long_plan())
    run = lab.wait_for_step(experiment, 3)
    os.kill(pid_of(run, 1), signal.SIGKILL)
    view = lab.wait_for_end(experiment)
    assert (view.state, view.verdict) == ("finished", "NO_GO")
    (decision,) = lab.client.get(f"/experiments/{view.id}/decisions")["items"]
    assert decision["diagnosis"] == "killed"
    cause = decision["cause"]
    assert (cause["rank"], cause["log"], cause["unknown"]) == (1, "rank1.log", False)
    log = (folder_of(run).path / "rank1.log").read_text()
    assert cause["line"]
    assert cause["line"] in log
    shown = gonogo(lab.stack.home, "show", experiment)
    assert words(f"rank1.log ends: {cause['line']}") in words(shown.stdout)
    assert f"gonogo logs run_{run.id[-8:]} --rank 1" in shown.stdout
    assert view.next[0].command == f"gonogo logs {run.id} --rank 1"
    alert = decision_text(experiment, "lab", parse_decision(json.dumps(decision)).decision, [])
    assert words(cause["line"]) in words(alert)
    assert alert.endswith(f"Next: gonogo show {experiment}")


def words(text: str) -> str:
    """Return a text without its line breaks, which depend on the width of a terminal."""
    return " ".join(text.split())
