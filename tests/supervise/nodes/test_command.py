"""One command on two nodes: torchrun as a user types it, once on each, and one verdict."""

from __future__ import annotations

import sys

import pytest

from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.judge.directory import judge_directory
from tests.supervise.nodes.cluster import ClusterRun, NewCluster
from tests.supervise.runs import TRAINER

TORCHRUN = f"exec {sys.executable} -m torch.distributed.run"
LINE = f"{TORCHRUN} -m {TRAINER} --order $GONOGO_RUN_DIR/order.json"


def start_command(new_cluster: NewCluster, line: str = LINE, **changes: object) -> ClusterRun:
    """Two nodes with two ranks each, all started by one torchrun a node."""
    parts = {
        "entry": None,
        "command": ["bash", "-c", line],
        "world_size": 4,
        "env": {},
        "identity": {"world_size": 4},
        **changes,
    }
    return new_cluster("--allow", "any", **parts)


@pytest.mark.long
def test_torchrun_on_each_node_makes_one_world_and_one_verdict(new_cluster: NewCluster) -> None:
    run = start_command(new_cluster)
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER), record.text
    assert [list(run.part(node).ranks) for node in range(2)] == [["0", "1"], ["2", "3"]]
    assert {rank: row.code for rank, row in record.ranks.items()} == dict.fromkeys("0123", 0)
    assert run.findings() == []
    assert run.living() == []
    run.assert_replays()
    rows = judge_directory(run.path)["criteria"]
    assert {row["id"] for row in rows if row["outcome"] != "pass"} <= {"preflight", "watch_ceiling"}


@pytest.mark.long
def test_a_hang_of_a_rank_on_the_second_node_is_named_with_its_node(
    new_cluster: NewCluster,
) -> None:
    run = start_command(new_cluster, fault="hang:rank=3,step=12,section=backward")
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.STALLED, Actor.WATCHDOG), record.text
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.STALL, 3)
    assert "rank 3 is on node 1" in finding.text
    assert any(path.endswith("stacks_rank3.txt") for path in finding.evidence)
    assert run.living() == []
    run.assert_replays()


@pytest.mark.long
def test_a_node_that_is_killed_ends_the_command_on_the_other(new_cluster: NewCluster) -> None:
    run = start_command(new_cluster, steps=4000)
    run.wait_for_step(3)
    run.keepers[1].kill()
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.NODE_LOST, Actor.INFRA), record.text
    assert record.unheard == [1]
    assert run.living() == []
