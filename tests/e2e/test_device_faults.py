"""Faults that devices show, where there are none: an Xid is retried, imbalance is a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.api import RunView
from gonogo.rundir import RunDir, load_all_lines
from tests.e2e.lab import Lab, assert_found_again, one_phase_plan, processes_of, read_json


def runs_of(lab: Lab, experiment: str) -> list[RunView]:
    """Return every run of an experiment, first to last."""
    view = lab.client.experiment(experiment)
    return [lab.client.run(run) for phase in view.phases for run in phase.runs]


def folder_of(run: RunView) -> RunDir:
    assert run.dir is not None
    return RunDir(Path(run.dir))


def findings(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in load_all_lines(run.findings)]


@pytest.mark.long
def test_an_xid_is_hardware_is_retried_and_the_third_attempt_is_a_storm(lab: Lab) -> None:
    experiment = lab.submit(one_phase_plan(), fault="xid:code=79,rank=1,step=12")
    view = lab.wait_for_end(experiment)
    runs = runs_of(lab, experiment)
    assert [run.attempt for run in runs] == [1, 2, 3]
    for run in runs:
        assert run.outcome is not None
        assert (run.outcome.code, run.outcome.klass) == ("hardware", "infra")
        folder = folder_of(run)
        halts = [row for row in findings(folder) if row["severity"] == "halt"]
        assert (halts[0]["detector"], halts[0]["rank"]) == ("hardware", 1)
        assert "Xid 79" in halts[0]["text"]
        assert not list(folder.checkpoints.glob("step_*")), "nothing is saved after a fault"
        assert processes_of(run.id) == []
        assert_found_again(folder)
    assert (view.state, view.verdict) == ("finished", "NO_GO")


@pytest.mark.long
def test_imbalance_warns_names_its_rank_and_the_run_is_go(lab: Lab) -> None:
    experiment = lab.submit(one_phase_plan(), fault="imbalance:rank=1,util=30,from=10")
    view = lab.wait_for_end(experiment)
    (run,) = runs_of(lab, experiment)
    assert run.outcome is not None
    assert run.outcome.code == "completed"
    warnings = [row for row in findings(folder_of(run)) if row["detector"] == "imbalance"]
    assert {(row["severity"], row["rank"]) for row in warnings} == {("warn", 1)}
    assert len({row["key"] for row in warnings}) == len(warnings), "each episode once"
    assert (run.verdict, view.verdict) == ("GO", "GO")
    assert_found_again(folder_of(run))
    devices = read_json(folder_of(run).preflight)["devices"]
    assert [(row["rank"], row["scripted"]) for row in devices] == [(0, True), (1, True)]
