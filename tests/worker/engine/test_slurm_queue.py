"""For what does a pending job wait? Slurm's own words, counted: pure, by recorded answers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gonogo.contract.cluster import SlurmCluster
from tests.supervise.orders import make_order
from worker.engine.engine import Handle, Running
from worker.engine.slurm import Slurm, job_name
from worker.engine.slurm_queue import Partition, Pending, describe_wait

ORDER = make_order(nodes=2, world_size=2, token=7)
HANDLE = Handle(engine="slurm", name="12", run=ORDER.run, token=7)
JOB = {"JobId": "12", "Priority": "50", "NumNodes": "2-2", "NumCPUs": "4"}
BUSY = {"State": "MIXED", "CPUTot": "8", "CPUAlloc": "5", "Gres": "gpu:2", "GresUsed": "gpu:1"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"TresPerNode": "gres:gpu:1"}, "needs 2 GPUs"),
        ({"TresPerNode": "gres/gpu:h100:4"}, "needs 8 GPUs"),
        ({"TRES": "cpu=4,mem=8G,node=2,gres/gpu=1"}, "needs 1 GPU"),
        (
            {"ReqTRES": "cpu=4,node=2,gres/gpu=8,gres/gpu:h100=8", "TresPerNode": "x"},
            "needs 8 GPUs",
        ),
        ({}, "needs 4 CPUs"),
    ],
)
def test_what_a_job_needs_is_read_however_slurm_says_it(asked: dict[str, str], says: str) -> None:
    told = describe_wait({**JOB, **asked}, Partition(pending=(), nodes=()))
    assert told == f"0 ahead, {says}, 0 free"


def test_jobs_of_a_higher_priority_or_an_earlier_number_are_ahead() -> None:
    rows = [(9, 50), (10, 50), (12, 50), (13, 50), (14, 60), (15, 51), (1, 0)]
    pending = tuple(Pending(*row) for row in rows)
    told = describe_wait(JOB, Partition(pending=pending, nodes=()))
    assert told.startswith("4 ahead")


def test_what_is_free_is_counted_on_nodes_that_take_jobs() -> None:
    nodes = (
        BUSY,
        {**BUSY, "State": "IDLE", "GresUsed": "gpu:h100:0(IDX:N/A)", "CPUAlloc": "0"},
        {**BUSY, "State": "IDLE+DRAIN"},
        {**BUSY, "State": "DOWN*"},
        {**BUSY, "State": "IDLE*"},
    )
    here = Partition(pending=(), nodes=nodes)
    assert describe_wait({**JOB, "TresPerNode": "gres:gpu:1"}, here).endswith(
        "needs 2 GPUs, 3 free"
    )
    assert describe_wait(JOB, here).endswith("needs 4 CPUs, 11 free")


class Cluster:
    """Slurm's commands for one pending job, in the words of 22.05."""

    def __init__(
        self, reason: str = "Resources", fails: bool = False, partition: str = "main"
    ) -> None:
        self.reason, self.fails, self.partition = reason, fails, partition
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(" ".join(command[:3]))
        return subprocess.CompletedProcess(command, *self._answer(command))

    def _answer(self, command: Sequence[str]) -> tuple[int, str, str]:
        if command[0] == "scontrol" and "job" in command:
            line = (
                f"JobId=12 JobName={job_name(ORDER.run, 7)} UserId=root(0) Priority=50 QOS=(null)"
                f" JobState=PENDING Reason={self.reason} Partition={self.partition} NodeList=(null)"
                " NumNodes=2-2 NumCPUs=2 TRES=cpu=2,mem=4000M,node=2,billing=2"
                " TresPerNode=gres:gpu:1"
            )
            return 0, line, ""
        if self.fails:
            return 1, "", "Unable to contact slurm controller"
        if command[0] == "squeue":
            return 0, "11|60\n12|50\n", ""
        gpus = "Gres=gpu:2 GresDrain=N/A GresUsed=gpu:1 State=MIXED"
        rows = [f"NodeName=node{n} CPUAlloc=1 CPUTot=2 {gpus} Partitions=main " for n in (1, 2)]
        return 0, "\n".join([*rows, f"NodeName=n3 CPUTot=9 {gpus} Partitions=other,mainly"]), ""


def find(runs: Path, cluster: Cluster, times: int = 1) -> str:
    (runs / ORDER.run).mkdir(exist_ok=True)
    engine = Slurm(runs, SlurmCluster(), {}, cluster)
    found = [engine.find(HANDLE) for _ in range(times)][-1]
    assert isinstance(found, Running)
    assert found.waits
    return found.text


def test_a_pending_job_says_who_is_ahead_and_what_is_free(tmp_path: Path) -> None:
    assert find(tmp_path, Cluster()) == "Slurm: PENDING, Resources (1 ahead, needs 2 GPUs, 2 free)"


def test_a_job_that_may_have_any_of_several_partitions_counts_the_nodes_of_all(
    tmp_path: Path,
) -> None:
    told = find(tmp_path, Cluster(partition="main,other"))
    assert told == "Slurm: PENDING, Resources (1 ahead, needs 2 GPUs, 3 free)"


def test_a_limit_speaks_for_itself_and_a_silent_controller_says_no_more_than_the_reason(
    tmp_path: Path,
) -> None:
    limit = Cluster(reason="QOSMaxJobsPerUserLimit")
    assert find(tmp_path, limit) == "Slurm: PENDING, QOSMaxJobsPerUserLimit"
    assert find(tmp_path, Cluster(fails=True)) == "Slurm: PENDING, Resources"


def test_a_job_that_somebody_holds_says_what_lets_it_go_on(tmp_path: Path) -> None:
    told = find(tmp_path, Cluster(reason="JobHeldUser"))
    assert told == "Slurm: PENDING, JobHeldUser (somebody holds it: scontrol release 12)"
    told = find(tmp_path, Cluster(reason="JobHeldAdmin"))
    assert told == "Slurm: PENDING, JobHeldAdmin (an administrator holds it: ask why)"


def test_many_looks_ask_for_the_queue_once(tmp_path: Path) -> None:
    cluster = Cluster()
    find(tmp_path, cluster, times=5)
    assert len([row for row in cluster.asked if row.startswith("squeue")]) == 1
