"""What Slurm is asked for, and what its answers come to: pure parts, by recorded answers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from gonogo.contract.cluster import ClusterRequest, SlurmCluster
from gonogo.contract.errors import Rejected, Unavailable
from tests.supervise.orders import make_order
from worker.engine.engine import Ended, Handle, Running, Unknown
from worker.engine.slurm import (
    Slurm,
    build_options,
    build_script,
    job_name,
    judge_job,
    lay_over,
    parse_fields,
)

ORDER = make_order(nodes=2, world_size=2, token=7)
HANDLE = Handle(engine="slurm", name="12", run=ORDER.run, token=7)
NAME = job_name(ORDER.run, 7)
WELL = {"node1": "IDLE", "node2": "IDLE"}


def job(state: str, **more: str) -> dict[str, str]:
    return {"JobId": "12", "JobName": NAME, "JobState": state, "NodeList": "node[1-2]", **more}


def test_a_line_of_scontrol_is_taken_apart() -> None:
    line = (
        "JobId=12 JobName=x JobState=PENDING Reason=Resources NodeList=(null) Comment=a b TRES=c=1"
    )
    found = parse_fields(line)
    assert found["Reason"] == "Resources"
    assert found["Comment"] == "a b"
    assert found["TRES"] == "c=1"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED"])
def test_job_whose_nodes_answer_has_ended(state: str) -> None:
    found = judge_job(HANDLE, job(state), WELL)
    assert isinstance(found, Ended)
    assert "node1, node2 answers" in found.proof


@pytest.mark.parametrize(
    ("state", "nodes"),
    [
        pytest.param("NODE_FAIL", WELL, id="a node failed, and answers again"),
        pytest.param("CANCELLED", {**WELL, "node2": "IDLE*"}, id="one does not answer"),
        pytest.param("CANCELLED", {**WELL, "node2": "DOWN*+DRAIN"}, id="one is down"),
        pytest.param("", WELL, id="no state"),
        pytest.param("WHATEVER_NODE_FAILS", {"node1": "FAIL"}, id="a failing node"),
    ],
)
def test_job_of_a_node_that_may_train_on_is_unknown(state: str, nodes: dict[str, str]) -> None:
    assert isinstance(judge_job(HANDLE, job(state), nodes), Unknown)


@pytest.mark.parametrize(
    ("state", "waits"),
    [("PENDING", True), ("RUNNING", False), ("COMPLETING", False), ("SUSPENDED", False)],
)
def test_job_that_waits_or_runs_is_there_and_says_why(state: str, waits: bool) -> None:
    found = judge_job(HANDLE, job(state, Reason="Priority"), {})
    assert isinstance(found, Running)
    assert found.waits is waits
    assert not waits or "Priority" in found.text


def test_another_job_of_the_same_number_is_not_taken_for_ours() -> None:
    found = judge_job(HANDLE, {**job("COMPLETED"), "JobName": "someone's"}, WELL)
    assert isinstance(found, Unknown)


def test_jobs_are_never_requeued_and_get_what_the_plan_asks_for() -> None:
    cluster = SlurmCluster(
        partition="gpu", time_limit="1-00:00:00", gres="gpu:8", extra={"mem": "0"}
    )
    options = build_options(ORDER, 7, cluster, Path("/runs/r"))
    assert {"--no-requeue", "--nodes=2", "--ntasks-per-node=1"} <= set(options)
    assert {"--partition=gpu", "--time=1-00:00:00", "--gres=gpu:8", "--mem=0"} <= set(options)
    assert not [option for option in options if option.startswith(("--account", "--qos"))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": "a b"}, {"partition": "--wrap=x"}, {"time_limit": "soon"},
        {"extra": {"requeue": "1"}}, {"extra": {"export": "ALL"}}, {"extra": {"mem": "1\n"}},
        {"queue": "x"},
    ],
)  # fmt: skip
def test_what_is_no_word_or_not_listed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SlurmCluster.model_validate(wrong)


def test_values_of_the_environment_cannot_become_commands() -> None:
    script = build_script(ORDER, 7, {"A": "x; rm -rf $HOME", "BAD-NAME": "y"})
    assert "export A='x; rm -rf $HOME'" in script
    assert "BAD-NAME" not in script
    assert script.splitlines()[-1].startswith("exec srun ")


class Answers:
    """Slurm's commands, answered from a table by the program's name."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers, self.asked = answers, list[list[str]]()

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(command))
        code, out, err = self.answers.get(command[0], (0, "", ""))
        return subprocess.CompletedProcess(command, code, out, err)


def test_an_attempt_that_slurm_has_already_is_not_submitted_again(tmp_path: Path) -> None:
    answers = Answers(squeue=(0, "41\n", ""))
    (tmp_path / ORDER.run).mkdir()
    handle = Slurm(tmp_path, SlurmCluster(), {}, answers).submit(ORDER, 7)
    assert handle.name == "41"
    assert [command[0] for command in answers.asked] == ["squeue"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("sbatch: error: Requested node configuration is not available", Rejected),
        ("sbatch: error: Unable to contact slurm controller", Unavailable),
    ],
)
def test_refusal_is_told_from_a_controller_that_is_away(
    tmp_path: Path, said: str, error: type[Exception]
) -> None:
    (tmp_path / ORDER.run).mkdir()
    engine = Slurm(tmp_path, SlurmCluster(), {}, Answers(sbatch=(1, "", said)))
    with pytest.raises(error):
        engine.submit(ORDER, 7)


@pytest.mark.parametrize(
    "said",
    ["slurm_load_jobs error: Invalid job id specified", "Unable to contact slurm controller"],
)
def test_job_that_slurm_does_not_know_or_tell_is_unknown(tmp_path: Path, said: str) -> None:
    engine = Slurm(tmp_path, SlurmCluster(), {}, Answers(scontrol=(1, "", said)))
    assert isinstance(engine.find(HANDLE), Unknown)


def test_what_a_plan_asks_for_lies_over_what_holds_for_every_job() -> None:
    usual = SlurmCluster(partition="main", account="lab")
    own = ClusterRequest(slurm=SlurmCluster(partition="gpu", time_limit="30"))
    found = lay_over(usual, make_order(cluster=own))
    assert found == SlurmCluster(partition="gpu", account="lab", time_limit="30")
    assert lay_over(usual, make_order()) == usual


def test_each_rank_gets_a_gpu_where_nobody_says_how_many() -> None:
    order = make_order(nodes=2, world_size=8, profile="h100")
    assert lay_over(SlurmCluster(), order).gres == "gpu:4"
    for said in (SlurmCluster(gres="gpu:h100:8"), SlurmCluster(extra={"gpus-per-node": "8"})):
        assert lay_over(said, order) == said


def test_a_job_that_slurm_would_take_another_time_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / ORDER.run).mkdir()
    said = "sbatch: error: Job violates accounting/QOS policy (job submit limit)"
    engine = Slurm(tmp_path, SlurmCluster(), {}, Answers(sbatch=(1, "", said)))
    with pytest.raises(Unavailable, match="submit limit"):
        engine.submit(ORDER, 7)
