"""Anything but the trainer may be killed at any moment; the run continues, and nothing is lost.

Each test kills one part with SIGKILL in the middle of the smoke phase.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gonogo.contract.api import RunView
from gonogo.rundir import RunDir
from tests.e2e.lab import (
    Lab,
    beats,
    clean_environ,
    last_step,
    one_phase_plan,
    processes_of,
    read_json,
)

STEPS = 24
CHECKPOINT_AT = 10


def start(lab: Lab, step: int = 7, steps: int = STEPS) -> tuple[str, RunView]:
    """Submit the smoke phase alone, of so many steps, and wait until it is in the middle."""
    cadence = {"every_steps": CHECKPOINT_AT, "every_s": 600}
    experiment = lab.submit(one_phase_plan(steps=steps, checkpoint=cadence))
    return experiment, lab.wait_for_step(experiment, step)


def kill_child(lab: Lab, name: str) -> None:
    child = lab.stack.child(name)
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()


def keys_in_files(run: RunDir) -> set[tuple[int, str, int]]:
    return {(row["rank"], row["boot"], row["seq"]) for r in run.ranks() for row in beats(run, r)}


def keys_in_database(lab: Lab, run: str) -> set[tuple[int, str, int]]:
    rows = lab.client.pages(f"/runs/{run}/heartbeats", limit=1000)
    return {(row["rank"], row["boot"], row["seq"]) for row in rows}


def assert_unharmed(lab: Lab, experiment: str, run: RunView) -> None:
    """One attempt, every line in the database, GO."""
    view = lab.wait_for_end(experiment)
    assert view.verdict == "GO", view
    assert [len(phase.runs) for phase in view.phases] == [1]
    final = lab.client.run(run.id)
    assert final.outcome is not None
    assert final.outcome.code == "completed"
    folder = RunDir(Path(final.dir or ""))
    assert {len({row["boot"] for row in beats(folder, rank)}) for rank in (0, 1)} == {1}
    in_files = keys_in_files(folder)
    lab.wait(lambda: keys_in_database(lab, run.id) == in_files, limit_s=60)
    assert processes_of(run.id) == []


@pytest.mark.long
def test_the_worker_may_be_killed(lab: Lab) -> None:
    experiment, run = start(lab)
    kill_child(lab, "worker")
    assert_unharmed(lab, experiment, run)


@pytest.mark.long
def test_the_watcher_may_be_killed(lab: Lab) -> None:
    experiment, run = start(lab, steps=3 * STEPS)
    keeper = Path(run.dir or "") / "keeper.json"
    killed = [0]
    for step in (8, 16, 24):
        lab.wait_for_step(experiment, step)
        lab.wait(lambda: read_json(keeper)["watcher"]["pid"] != killed[-1])
        killed.append(read_json(keeper)["watcher"]["pid"])
        os.kill(killed[-1], signal.SIGKILL)
    assert_unharmed(lab, experiment, run)


@pytest.mark.long
@pytest.mark.parametrize("persistent", [True, False], ids=["with AOF", "without persistence"])
def test_redis_may_be_killed(lab: Lab, persistent: bool) -> None:
    experiment, run = start(lab)
    kill_child(lab, "redis")
    if not persistent:
        shutil.rmtree(lab.stack.home / "redis")
        (lab.stack.home / "redis").mkdir()
    assert_unharmed(lab, experiment, run)


@pytest.mark.long
def test_the_control_plane_may_be_killed(lab: Lab) -> None:
    experiment, run = start(lab)
    kill_child(lab, "service")
    assert_unharmed(lab, experiment, run)


def test_a_killed_keeper_takes_its_run_along_and_the_run_resumes(lab: Lab) -> None:
    experiment, run = start(lab, step=13)
    folder = RunDir(Path(run.dir or ""))
    pid = read_json(folder.path / "keeper.json")["pid"]
    os.kill(pid, signal.SIGKILL)
    lab.wait(lambda: processes_of(run.id) == [], limit_s=20)
    view = lab.wait_for_end(experiment)
    assert view.verdict == "GO", view
    first, second = (lab.client.run(each) for each in view.phases[0].runs)
    assert first.outcome is not None
    assert first.outcome.code == "keeper_lost"
    assert (second.attempt, second.reason) == (2, "resume")
    order = read_json(RunDir(Path(second.dir or "")).order)
    assert order["resume_from"]["step"] == CHECKPOINT_AT
    steps = [r["step"] for r in beats(RunDir(Path(second.dir or "")), 0) if r["msg"] == "step_end"]
    assert steps == list(range(CHECKPOINT_AT + 1, STEPS + 1))


@pytest.mark.long
def test_a_halted_run_can_be_resumed_to_go(lab: Lab) -> None:
    experiment, run = start(lab, step=5)
    lab.client.post(f"/experiments/{experiment}/halt", {"reason": "a look"})
    view = lab.wait_for_end(experiment)
    assert (view.state, view.verdict) == ("awaiting_decision", "INCONCLUSIVE")
    halted = lab.client.run(run.id)
    assert halted.outcome is not None
    assert (halted.outcome.code, halted.outcome.actor) == ("halted", "operator")
    stopped_at = last_step(RunDir(Path(halted.dir or "")), 0)
    lab.client.post(f"/experiments/{experiment}/resume", {"reason": "looked"})
    lab.wait(lambda: lab.client.experiment(experiment).state == "running")
    view = lab.wait_for_end(experiment)
    assert view.verdict == "GO", view
    second = RunDir(Path(lab.client.run(view.phases[0].runs[-1]).dir or ""))
    assert read_json(second.order)["resume_from"]["step"] == stopped_at


@pytest.mark.long
def test_a_cancelled_experiment_ends_without_a_verdict(lab: Lab) -> None:
    experiment, run = start(lab, step=3)
    lab.client.post(f"/experiments/{experiment}/cancel", {"reason": "enough"})
    view = lab.wait_for_end(experiment)
    assert (view.state, view.verdict) == ("finished", None)
    assert processes_of(run.id) == []


@pytest.mark.long
def test_ctrl_c_ends_the_demo_with_a_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with log.open("wb") as stream:
        demo = subprocess.Popen(
            [sys.executable, "-m", "gonogo.cli.main", "demo", "--json"],
            env=clean_environ(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
    deadline = time.monotonic() + 120
    while (
        not re.search(r"synthetic running: step [2-6]/", log.read_text())
        and time.monotonic() < deadline
    ):
        assert demo.poll() is None, log.read_text()
        time.sleep(0.1)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 130
    run = max((tmp_path / "demo").glob("*/runs/*"), key=lambda path: path.name)
    record = read_json(RunDir(run).exit)
    assert (record["reason"], record["ended_by"]) == ("halted", "operator")
    assert list(RunDir(run).checkpoints.glob("step_*/manifest.json"))
    assert processes_of(run.name) == []
