"""A run on two nodes under a real Slurm: started by the engine, watched, judged, ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gonogo.contract.cluster import SlurmCluster
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import PREFLIGHT_CHECKS, CheckOutcome, Preflight
from gonogo.judge.directory import judge_directory
from gonogo.rundir import load_record, save_json
from gonogo.supervise.node_record import load_keeping
from gonogo.supervise.processes import find_process
from gonogo.supervise.watcher.recording import WATCHED_NAME
from tests.slurm_lab import Lab, can_run, slurm_lab
from tests.supervise.nodes.cluster import ClusterRun, starting_cluster
from tests.supervise.runs import KEEPER, ROOT, TRAINER, wait_until
from worker.engine.engine import Ended, Handle, Running
from worker.engine.slurm import Slurm

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("slurm"),
    pytest.mark.skipif(not can_run(), reason="namespaces need root, and ip"),
]
LIMIT_S = 180.0
Submit = Callable[..., tuple[ClusterRun, Handle]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with slurm_lab() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home on the file system that the nodes share; munge's user need not enter it."""
    (tmp_path / "home" / "runs").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def engine(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("SLURM_CONF", lab.environ["SLURM_CONF"])
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "GONOGO_HOME": str(home),
        "GONOGO_WORKER_ALLOW": TRAINER,
        "OMP_NUM_THREADS": "1",
        **lab.environ,
    }
    return Slurm(home / "runs", SlurmCluster(partition="main"), environ, keeper=KEEPER)


@pytest.fixture
def submitted(engine: Slurm, home: Path) -> Iterator[Submit]:
    """Factory `submitted(**order parts)` → the run and its handle."""
    handles: list[Handle] = []
    with starting_cluster(home / "runs") as new:

        def submit(**changes: object) -> tuple[ClusterRun, Handle]:
            run = new(begin=False, **changes)
            save_json(run.dir.order, run.order.document())
            handles.append(engine.submit(run.order, run.order.token))
            return run, handles[-1]

        yield submit
        for handle in handles:
            engine.stop(handle)
            wait_until(lambda h=handle: isinstance(engine.find(h), Ended), "the end of a job", 60)


def wait_for_end(run: ClusterRun) -> None:
    wait_until(run.dir.exit.exists, "exit.json", LIMIT_S)
    wait_until((run.path / WATCHED_NAME).exists, "the last tick")


def test_run_on_two_nodes_is_judged_and_its_job_has_ended(
    submitted: Submit, engine: Slurm, lab: Lab
) -> None:
    run, handle = submitted(preflight=list(PREFLIGHT_CHECKS))
    assert engine.submit(run.order, run.order.token) == handle, "it is there already"
    assert isinstance(engine.find(handle), Running)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER), record.text
    assert run.findings() == []
    keepings = [load_keeping(run.path, node) for node in range(2)]
    assert [row.host for row in keepings if row is not None] == ["node1", "node2"]
    ended = wait_until(lambda: isinstance(found := engine.find(handle), Ended) and found, "the job")
    assert "COMPLETED" in ended.proof
    second = load_record(run.path / "preflight" / "node1" / "preflight.json", Preflight)
    assert second is not None
    assert CheckOutcome.FAIL not in {row.outcome for row in second.checks}
    decision = judge_directory(run.path)
    assert {row["id"] for row in decision["criteria"] if row["outcome"] != "pass"} == set()
    assert decision["verdict"] == "GO"
    run.assert_replays()
    assert not any(lab.pids(node) & set(run.living()) for node in (1, 2))


@pytest.mark.parametrize("rank", [0, 1], ids=["on node1", "on node2"])
def test_hanging_rank_is_named_on_either_node(submitted: Submit, rank: int) -> None:
    run, _ = submitted(fault=f"hang:rank={rank},step=12,section=backward")
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.STALLED, Actor.WATCHDOG), record.text
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.STALL, rank)
    assert f"on node {rank}" in finding.text
    wait_until(lambda: not run.living(), "nothing to be left")
    run.assert_replays()


def test_cancelled_job_leaves_with_a_checkpoint_as_preempted(
    submitted: Submit, engine: Slurm
) -> None:
    run, handle = submitted(steps=4000)
    run.wait_for_step(3, LIMIT_S)
    engine.stop(handle)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.PREEMPTED, Actor.INFRA), record.text
    wait_until(lambda: not run.living(), "nothing to be left")
    wait_until(lambda: isinstance(engine.find(handle), Ended), "the job", 60)


def test_node_daemon_that_dies_and_comes_back_ends_nothing(submitted: Submit, lab: Lab) -> None:
    run, _ = submitted(steps=200)
    run.wait_for_step(3, LIMIT_S)
    lab.kill("slurmd2")
    run.wait_for_step(60, LIMIT_S)
    lab.start_node(2)
    wait_for_end(run)
    assert run.record().reason is OutcomeCode.COMPLETED
    assert run.findings() == []
    lab.wait_for_idle()


def test_keeper_of_a_node_that_is_killed_is_a_lost_node(submitted: Submit) -> None:
    run, _ = submitted(steps=4000)
    run.wait_for_step(3, LIMIT_S)
    keeping = load_keeping(run.path, 1)
    assert keeping is not None
    assert find_process(keeping.ref.pid) == keeping.ref, "the lab's processes are this host's"
    keeping.ref.send(signal.SIGKILL)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.NODE_LOST, Actor.INFRA), record.text
    wait_until(lambda: not run.living(), "nothing to be left")
