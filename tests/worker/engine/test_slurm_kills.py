"""What becomes of a run under Slurm when a part of it, of Slurm or of the network dies?"""

from __future__ import annotations

import signal
import time

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.supervise.process_records import EXIT_NAME, MET_NAME, load_keeping
from gonogo.supervise.processes import find_process
from tests.slurm_lab import Lab, can_run
from tests.supervise.nodes.cluster import ClusterRun
from tests.supervise.runs import wait_until
from tests.worker.engine.conftest import Submit
from worker.engine.engine import Ended, Running, Unknown
from worker.engine.slurm import Slurm

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("slurm"),
    pytest.mark.skipif(not can_run(), reason="namespaces need root, and ip"),
]
LIMIT_S = 240.0
SAVED_S = 7.0
"""slurmctld writes its state with up to 5 s of delay."""
ON_EITHER = pytest.mark.parametrize("node", [0, 1], ids=["on the first node", "on the second node"])


def wait_for_end(run: ClusterRun) -> None:
    wait_until(run.dir.exit.exists, "exit.json", LIMIT_S)


def leave_nothing(run: ClusterRun) -> None:
    wait_until(lambda: not run.living(), "nothing to be left", LIMIT_S)


def wait_for_job(lab: Lab) -> None:
    """Wait until the queue is empty: nothing of a run is left, and nothing comes again."""
    wait_until(lambda: not lab.ask("squeue", "--noheader").strip(), "an empty queue", LIMIT_S)


@pytest.mark.parametrize("daemon", ["slurmd1", "slurmd2"])
def test_node_daemon_that_dies_and_comes_back_ends_nothing(
    submitted: Submit, lab: Lab, daemon: str
) -> None:
    run, _ = submitted(steps=200)
    run.wait_for_step(3, LIMIT_S)
    lab.kill(daemon)
    run.wait_for_step(60, LIMIT_S)
    lab.start_node(int(daemon[-1]))
    wait_for_end(run)
    assert run.record().reason is OutcomeCode.COMPLETED
    assert run.findings() == []
    wait_for_job(lab)
    lab.wait_for_idle()


def test_controller_that_dies_and_comes_back_ends_nothing(
    submitted: Submit, engine: Slurm, lab: Lab
) -> None:
    run, handle = submitted(steps=600)
    run.wait_for_step(3, LIMIT_S)
    time.sleep(SAVED_S)
    lab.kill("slurmctld")
    assert isinstance(engine.find(handle), Unknown), "who does not answer proves nothing"
    lab.start_controller()
    wait_until(lambda: isinstance(engine.find(handle), Running | Ended), "the controller", LIMIT_S)
    wait_for_end(run)
    assert run.record().reason is OutcomeCode.COMPLETED, run.record().text
    assert run.findings() == []
    wait_until(lambda: isinstance(engine.find(handle), Ended), "the job", LIMIT_S)


def test_controller_that_forgot_what_it_had_started_starts_nothing_twice(
    submitted: Submit, engine: Slurm, lab: Lab
) -> None:
    """Killed before its state is saved it ends the steps, and queues the job again."""
    run, handle = submitted(steps=400)
    both = (0, 1)
    wait_until(lambda: all(load_keeping(run.path, node) for node in both), "both keepers", LIMIT_S)
    keepers = [load_keeping(run.path, node) for node in both]
    lab.kill("slurmctld")
    lab.start_controller()
    wait_for_end(run)
    assert run.record().reason in (OutcomeCode.PREEMPTED, OutcomeCode.COMPLETED), run.record().text
    leave_nothing(run)

    def is_over() -> bool:
        found = engine.find(handle)
        if isinstance(found, Running) and found.waits:
            assert found.again, found
            engine.stop(handle)  # as the worker does
        return not lab.ask("squeue", "--noheader").strip()

    wait_until(is_over, "an empty queue", LIMIT_S)
    assert [load_keeping(run.path, node) for node in both] == keepers
    for node in (1, 2):
        if "drain" in lab.ask("sinfo", "-h", "-N", "-n", f"node{node}", "-o", "%T"):
            lab.ask("scontrol", "update", f"NodeName=node{node}", "State=RESUME")
    lab.wait_for_idle(LIMIT_S)


@ON_EITHER
def test_keeper_that_is_killed_ends_the_run_and_leaves_nothing(
    submitted: Submit, engine: Slurm, lab: Lab, node: int
) -> None:
    run, handle = submitted(steps=4000)
    run.wait_for_step(3, LIMIT_S)
    keeping = load_keeping(run.path, node)
    assert keeping is not None
    assert find_process(keeping.ref.pid) == keeping.ref, "the lab's processes are this host's"
    keeping.ref.send(signal.SIGKILL)
    leave_nothing(run)
    wait_until(lambda: isinstance(engine.find(handle), Ended), "the job", LIMIT_S)
    assert (run.path / EXIT_NAME.format(1 - node)).exists(), "the other node has recorded its end"
    assert not (run.path / EXIT_NAME.format(node)).exists()
    if node == 0:  # nobody is left who could write it: the worker does, with Slurm's words
        assert not run.dir.exit.exists()
        return
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.NODE_LOST, Actor.INFRA), record.text
    assert record.unheard == [1]
    assert "node2 says: its keeper" in record.text, "no host knows another's processes"


def test_keeper_that_is_killed_before_its_rank_has_begun_is_not_waited_for(
    submitted: Submit, lab: Lab
) -> None:
    """The other node's launcher would wait ten minutes for that of this one."""
    run, _ = submitted(steps=4000)
    met = run.path / MET_NAME
    wait_until(met.exists, "the meeting", LIMIT_S)
    keeping = load_keeping(run.path, 1)
    assert keeping is not None
    keeping.ref.send(signal.SIGKILL)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.NODE_LOST, Actor.INFRA), record.text
    leave_nothing(run)
    wait_for_job(lab)


def test_node_that_loses_its_power_is_no_fault_of_the_program(
    submitted: Submit, engine: Slurm, lab: Lab
) -> None:
    run, handle = submitted(steps=4000)
    run.wait_for_step(3, LIMIT_S)
    lab.power_off(2)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.ISOLATED, Actor.INFRA), record.text
    assert record.unheard == [1]
    leave_nothing(run)
    wait_for_job(lab)
    assert isinstance(engine.find(handle), Unknown), "NODE_FAIL alone proves nothing"
    lab.power_on(2)
    lab.wait_for_idle(LIMIT_S)
    found = wait_until(lambda: isinstance(row := engine.find(handle), Ended) and row, "the proof")
    assert "node2 has booted since" in found.proof


def test_time_limit_is_a_preemption_with_a_checkpoint(
    submitted: Submit, engine: Slurm, lab: Lab
) -> None:
    run, handle = submitted(steps=4000)
    run.wait_for_step(3, LIMIT_S)
    lab.shorten(handle.name)
    wait_for_end(run)
    record = run.record()
    assert (record.reason, record.ended_by) == (OutcomeCode.PREEMPTED, Actor.INFRA), record.text
    assert {row.code for row in record.ranks.values()} == {3}
    leave_nothing(run)
    wait_until(lambda: isinstance(engine.find(handle), Ended), "the job", LIMIT_S)
