"""A run on two nodes under a real Slurm: started by the engine, watched, judged, ended."""

from __future__ import annotations

import pytest

from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import PREFLIGHT_CHECKS, CheckOutcome, Preflight
from gonogo.judge.directory import judge_directory
from gonogo.rundir import load_record
from gonogo.supervise.durable import load_json
from gonogo.supervise.process_records import load_keeping
from gonogo.supervise.watcher.journal import WATCHED_NAME
from tests.slurm_lab import Lab, can_run
from tests.supervise.nodes.cluster import ClusterRun
from tests.supervise.runs import wait_until
from tests.worker.engine.conftest import Submit
from worker.engine.engine import Ended, Running
from worker.engine.slurm import Slurm

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("slurm"),
    pytest.mark.skipif(not can_run(), reason="namespaces need root, and ip"),
]
LIMIT_S = 180.0


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


def test_run_that_comes_to_the_nodes_of_another_leaves_it_alone(submitted: Submit) -> None:
    first, _ = submitted(steps=500)
    first.wait_for_step(3, LIMIT_S)
    second, _ = submitted(steps=10)
    for run in (second, first):
        wait_for_end(run)
        assert run.record().reason is OutcomeCode.COMPLETED, run.record().text
        assert run.findings() == []


def test_runs_that_begin_at_once_on_one_node_have_each_a_place(submitted: Submit) -> None:
    """Both check the host before one of them has a place there."""
    on_one = {"slurm": {"extra": {"nodelist": "node1"}}}
    runs = [submitted(nodes=1, world_size=1, cluster=on_one)[0] for _ in range(2)]
    for run in runs:
        wait_for_end(run)
        assert run.record().reason is OutcomeCode.COMPLETED, run.record().text
    places = [(load_json(run.path / "keeper.json") or {})["locks"] for run in runs]
    assert sorted(places) == [["cpu:0"], ["cpu:1"]]


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
    assert {row.code for row in record.ranks.values()} == {3}, "Slurm's TERM has ended no rank"
    wait_until(lambda: not run.living(), "nothing to be left")
    wait_until(lambda: isinstance(engine.find(handle), Ended), "the job", 60)
