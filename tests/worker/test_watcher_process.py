"""The watcher of a host of the service: it obeys the control plane, and does not need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.rundir import load_all_lines
from tests.supervise.runs import NewRun, wait_until
from tests.worker.control_plane import FakeControlPlane, RunStore, serving
from worker.engine.engine import save_control_plane_url, save_submission


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("halt", OutcomeCode.HALTED),
        pytest.param("cancel", OutcomeCode.CANCELLED, marks=pytest.mark.long),
    ],
)
def test_operator_ends_a_run_with_a_checkpoint(
    new_run: NewRun, kind: str, code: OutcomeCode
) -> None:
    plane = FakeControlPlane()
    with serving(plane):
        run = new_run(environ=environ_of(plane), steps=2000)
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        run.wait_for_step(3)
        store.command = {"kind": kind, "reason": "enough", "actor": "ann"}
        record = run.wait_for_exit()
    assert (record.reason, record.ended_by, record.code) == (code, Actor.OPERATOR, 3)
    assert record.text == "ann: enough"
    assert run.dir.checkpoints.is_dir()
    assert run.halts() == []
    assert store.events()[-1] == "end"


@pytest.mark.long
def test_everything_is_shipped_when_the_run_is_over(new_run: NewRun) -> None:
    plane = FakeControlPlane()
    with serving(plane):
        run = new_run(environ=environ_of(plane), fault="crash:rank=1,step=8")
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        run.wait_for_exit()
    for rank in range(2):
        lines = [line.decode() for line in load_all_lines(run.dir.heartbeat(rank))]
        assert store.lines[str(rank)] == lines
    assert set(store.findings) == {finding.key for finding in run.findings()}
    assert store.states[-1].findings == len(run.findings())
    assert (run.path / ".shipped").exists()


def test_dead_control_plane_delays_no_halt(new_run: NewRun) -> None:
    plane = FakeControlPlane(down=True)
    with serving(plane):
        run = new_run(environ=environ_of(plane), fault="hang:rank=1,step=6")
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        wait_until(run.dir.exit.exists, "the end")
        finding = run.halts()[0]
        assert finding.since is not None
        assert finding.at - finding.since <= 2.5 + 2
        plane.down = False
        run.wait_for_exit()
    assert set(store.findings) == {finding.key for finding in run.findings()}


@pytest.mark.long
def test_run_of_an_engine_is_told_of_and_ended_where_its_home_is_worked_by_now(
    new_run: NewRun, tmp_path: Path
) -> None:
    """From another login node, or at another port, than its job was submitted with."""
    plane = FakeControlPlane()
    home = tmp_path / "home"
    home.mkdir()
    with serving(plane):
        gone = {"GONOGO_URL": "http://127.0.0.1:9", "GONOGO_HOME": str(home)}
        run = new_run(environ={**environ_of(plane), **gone}, steps=2000)
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        run.wait_for_step(3)
        save_submission(run.path, "slurm", "7")
        save_control_plane_url(home, plane.url)
        store.command = {"kind": "cancel", "reason": "enough", "actor": "ann"}
        record = run.wait_for_exit()
    assert record.reason is OutcomeCode.CANCELLED
    assert store.events()[-1] == "end"


@pytest.mark.long
def test_stale_token_ends_the_attempt(new_run: NewRun) -> None:
    plane = FakeControlPlane()
    with serving(plane):
        run = new_run(environ=environ_of(plane), steps=2000)
        store = plane.runs.setdefault(run.order.run, RunStore(token=1))
        run.wait_for_step(3)
        store.token = 2
        record = run.wait_for_exit()
    assert record.reason is OutcomeCode.SUPERSEDED


def environ_of(plane: FakeControlPlane) -> dict[str, str]:
    return {"GONOGO_URL": plane.url, "GONOGO_API_KEY": plane.key}
