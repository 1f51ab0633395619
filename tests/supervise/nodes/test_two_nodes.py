"""One verdict for two nodes: real keepers, launchers, followers and one watcher, on one host."""

from __future__ import annotations

import json
import signal
import time

import pytest

from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import NodeState
from gonogo.judge.directory import judge_directory
from gonogo.rundir import load_all_lines
from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import EndRequest, ask_halt
from gonogo.supervise.process_records import MEET_NAME
from gonogo.supervise.processes import ProcessRef, send_signal
from gonogo.watch.registry import detector_names
from tests.supervise.nodes.cluster import NewCluster
from tests.supervise.runs import wait_until


@pytest.mark.long
def test_healthy_run_completes_on_both_nodes_and_leaves_nothing_behind(
    new_cluster: NewCluster,
) -> None:
    run = new_cluster()
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER)
    assert (record.code, record.unheard) == (0, [])
    assert record.nodes is not None
    assert set(record.nodes) == {"0", "1"}
    assert all(row.watch.bytes for row in record.nodes.values())
    assert run.findings() == []
    assert [list(run.part(node).ranks) for node in range(2)] == [["0"], ["1"]]
    states = set(run.node_states()) - {(1, NodeState.ENDED)}  # its part may end a moment earlier
    assert states == {(0, NodeState.HEARD), (1, NodeState.HEARD)}
    assert run.living() == []
    run.assert_replays()
    decision = judge_directory(run.path)
    failed = {row["id"]: row for row in decision["criteria"] if row["outcome"] != "pass"}
    assert set(failed) <= {"preflight", "watch_ceiling"}, "no preflight was made; its gate is empty"


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1], ids=["on the first node", "on the second node"])
def test_hanging_rank_is_named_with_its_node_and_its_stack(
    new_cluster: NewCluster, rank: int
) -> None:
    run = new_cluster(fault=f"hang:rank={rank},step=12,section=backward")
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.STALLED, Actor.WATCHDOG)
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.STALL, rank)
    assert f"rank {rank} is on node {rank}" in finding.text
    stacks = [path for path in finding.evidence if path.endswith(f"stacks_rank{rank}.txt")]
    assert "strike" in (run.path / stacks[0]).read_text()
    assert run.living() == []
    run.assert_replays()


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1], ids=["on the first node", "on the second node"])
def test_dead_rank_ends_the_run_on_both_nodes(new_cluster: NewCluster, rank: int) -> None:
    run = new_cluster(fault=f"crash:rank={rank},step=8")
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.PROCESS_DEATH, rank)
    assert f"on node {rank}" in finding.text
    assert f"rank {rank}" in record.text
    assert set(record.ranks) == {"0", "1"}
    assert run.living() == []
    run.assert_replays()


@pytest.mark.long
def test_device_of_another_node_that_fails_ends_the_run_by_its_rank(
    new_cluster: NewCluster,
) -> None:
    fault = "xid:code=79,rank=1,step=8"
    run = new_cluster(fault=fault, steps=4000, allow_faults=True, detectors=detector_names())
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.HARDWARE, Actor.WATCHDOG), record.text
    finding = run.halts()[0]
    assert (finding.detector, finding.rank) == (Detector.HARDWARE, 1)
    assert "Xid 79" in finding.text
    assert "rank 1 is on node 1" in finding.text
    told = {json.loads(line)["rank"] for line in load_all_lines(run.dir.devices)}
    assert told == {0, 1}
    assert run.living() == []
    run.assert_replays()


@pytest.mark.long
def test_node_whose_keeper_is_gone_is_lost_and_that_is_no_fault_of_the_program(
    new_cluster: NewCluster,
) -> None:
    run = new_cluster(steps=4000)
    run.wait_for_step(3)
    run.keepers[1].kill()
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.NODE_LOST, Actor.INFRA)
    assert "node 1 is lost" in record.text
    assert record.unheard == [1]
    assert (1, NodeState.LOST) in run.node_states()
    assert run.living() == []


@pytest.mark.long
def test_other_nodes_end_when_the_keeper_of_the_first_is_gone(new_cluster: NewCluster) -> None:
    run = new_cluster(steps=4000)
    run.wait_for_step(3)
    run.keepers[0].kill()
    wait_until(lambda: run.keepers[1].poll() is not None, "the end of node 1")
    assert list(run.part(1).ranks) == ["1"]
    wait_until(lambda: not run.living(), "nothing to be left")
    assert not run.dir.exit.exists(), "the process that ends lost runs writes it"


@pytest.mark.long
def test_silent_node_is_unknown_and_ends_nothing_until_it_is_heard_again(
    new_cluster: NewCluster,
) -> None:
    run = new_cluster(steps=400)
    run.wait_for_step(3)
    follower = ProcessRef(
        **{
            key: load_json(run.path / "keeper_node1.json")["follower"][key]  # type: ignore[index]
            for key in ("pid", "start_ticks")
        }
    )
    follower.send(signal.SIGSTOP)
    wait_until(lambda: (1, NodeState.SILENT) in run.node_states(), "the silence", 40)
    follower.send(signal.SIGCONT)
    record = run.wait_for_all()
    assert record.reason is OutcomeCode.COMPLETED
    assert run.findings() == []
    states = [state for node, state in run.node_states() if node == 1]
    assert states[:3] == [NodeState.HEARD, NodeState.SILENT, NodeState.HEARD]
    run.assert_replays()


@pytest.mark.long
def test_follower_that_dies_is_back_and_the_run_goes_on(new_cluster: NewCluster) -> None:
    run = new_cluster(steps=100)
    run.wait_for_step(3)
    before = load_json(run.path / "keeper_node1.json")
    assert before is not None
    send_signal(before["follower"]["pid"], signal.SIGKILL)
    record = run.wait_for_all()
    assert record.reason is OutcomeCode.COMPLETED
    after = load_json(run.path / "keeper_node1.json")
    assert after is not None
    assert after["follower"]["pid"] != before["follower"]["pid"]
    assert run.findings() == []


def test_a_node_that_never_comes_starts_nothing(new_cluster: NewCluster) -> None:
    run = new_cluster(begin=False)
    run.path.mkdir(parents=True)
    run.dir.order.write_text(json.dumps(run.order.document()))
    run.start_node(0, "--meet-s", "1")
    record = run.wait_for_all()
    assert (record.reason, record.ended_by) == (OutcomeCode.PREFLIGHT_FAILED, Actor.INFRA)
    assert "of node 1 nothing was read" in record.text
    assert not run.dir.torchrun_log.exists()


@pytest.mark.parametrize("asked", [True, False], ids=["a person's", "the host's"])
def test_a_node_that_is_told_to_stop_while_it_waits_says_for_whom(
    new_cluster: NewCluster, asked: bool
) -> None:
    """A person's cancel comes as a request, and as the scheduler's signal."""
    run = new_cluster(begin=False)
    run.path.mkdir(parents=True)
    run.dir.order.write_text(json.dumps(run.order.document()))
    run.start_node(0)
    wait_until((run.path / MEET_NAME.format(0)).exists, "node 0")
    if asked:
        request = EndRequest(reason="cancelled", ended_by="operator", at=time.time(), text="ann")
        ask_halt(run.path, request)
    run.keepers[0].terminate()
    record = run.wait_for_all()
    told = (OutcomeCode.PREEMPTED, Actor.INFRA)
    if asked:
        told = (OutcomeCode.CANCELLED, Actor.OPERATOR)
    assert (record.reason, record.ended_by) == told, record.text
