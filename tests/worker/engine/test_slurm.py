"""What Slurm is asked for, and what its answers come to: pure parts, by recorded answers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.workload import ClusterRequest, SlurmCluster
from gonogo.rundir import save_json
from gonogo.supervise.process_records import MEET_NAME, own_keeping
from gonogo.supervise.processes import own_python
from tests.supervise.orders import make_order
from tests.supervise.runs import wait_until
from worker.__main__ import build_engine
from worker.engine.engine import Ended, Handle, Running, Unknown
from worker.engine.slurm import (
    Slurm,
    build_options,
    build_script,
    job_name,
    judge_job,
    lay_over,
    load_defaults,
    load_last_words,
    parse_fields,
    run_command,
)
from worker.settings import load_settings

ORDER = make_order(nodes=2, world_size=2, token=7)
RUN_DIR = Path("/runs/r")
HANDLE = Handle(engine="slurm", name="12", run=ORDER.run, token=7)
NAME = job_name(ORDER.run, 7)
WELL = {"node1": "IDLE", "node2": "IDLE"}


def rows(states: dict[str, str]) -> list[dict[str, str]]:
    """Return what `scontrol show node` reports of nodes."""
    return [{"NodeName": name, "State": state} for name, state in states.items()]


def job(state: str, **more: str) -> dict[str, str]:
    return {"JobId": "12", "JobName": NAME, "JobState": state, "NodeList": "node[1-2]", **more}


def test_a_line_of_scontrol_is_taken_apart() -> None:
    line = (
        "JobId=12 JobState=PENDING Reason=Resources NodeList= Comment=a b TRES=c=1 JobState=FAILED"
    )
    found = parse_fields(line)
    assert (found["Reason"], found["Comment"], found["TRES"]) == ("Resources", "a b", "c=1")
    assert found["JobState"] == "PENDING", "what people wrote in a comment is no field"


def test_what_people_set_for_commands_that_they_type_is_kept_from_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = ("SCANCEL_STATE", "SCANCEL_INTERACTIVE", "SQUEUE_PARTITION", "SLURM_TIME_FORMAT")
    for name in (*theirs, "SLURM_CONF", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "set")
    seen = run_command(["env"]).stdout.splitlines()
    assert {"SLURM_CONF=set", "SBATCH_PARTITION=set"} <= set(seen)
    assert [name for name in theirs if f"{name}=set" in seen] == []
    assert run_command(["cat"]).stdout == "", "a command that asks is answered by nobody"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"])
def test_job_whose_nodes_answer_has_ended(state: str) -> None:
    found = judge_job(HANDLE, job(state), rows(WELL))
    assert isinstance(found, Ended)
    assert "node1, node2 answers" in found.proof


@pytest.mark.parametrize(
    ("told", "proven"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", True), ("IDLE+POWERING_DOWN", True),
        ("IDLE*+CLOUD+POWERED_DOWN", False), ("DOWN+CLOUD+POWERED_DOWN", False),
        ("IDLE+DOWN", False),
    ],
)  # fmt: skip
def test_a_node_that_slurm_had_nothing_for_and_switched_off_has_nothing_left_of_a_job(
    told: str, proven: bool
) -> None:
    found = judge_job(HANDLE, job("CANCELLED"), rows({**WELL, "node2": told}))
    assert isinstance(found, Ended if proven else Unknown)


@pytest.mark.parametrize(
    ("state", "nodes"),
    [
        pytest.param("NODE_FAIL", {**WELL, "node2": "DOWN*"}, id="a node failed"),
        pytest.param("CANCELLED", {**WELL, "node2": "IDLE*"}, id="one does not answer"),
        pytest.param("CANCELLED", {**WELL, "node2": "DOWN*+DRAIN"}, id="one is down"),
        pytest.param("", WELL, id="no state"),
        pytest.param("RESIZING", WELL, id="given up some of its nodes, and runs"),
        pytest.param("REVOKED", WELL, id="a sibling runs in another cluster"),
    ],
)
def test_job_of_a_node_that_may_train_on_is_unknown(state: str, nodes: dict[str, str]) -> None:
    assert isinstance(judge_job(HANDLE, job(state), rows(nodes)), Unknown)


@pytest.mark.parametrize(
    ("state", "waits", "stands"),
    [
        ("PENDING", True, False), ("RUNNING", False, False), ("COMPLETING", False, False),
        ("SUSPENDED", False, True),
    ],
)  # fmt: skip
def test_job_that_waits_or_runs_is_there_and_says_why(
    state: str, waits: bool, stands: bool
) -> None:
    found = judge_job(HANDLE, job(state, Reason="Priority"), [])
    assert isinstance(found, Running)
    assert (found.waits, found.stands) == (waits, stands)
    assert not waits or "Priority" in found.text


def test_another_job_of_the_same_number_is_not_taken_for_ours() -> None:
    found = judge_job(HANDLE, {**job("COMPLETED"), "JobName": "someone's"}, rows(WELL))
    assert isinstance(found, Unknown)


def test_all_that_sbatch_is_told_of_an_attempt() -> None:
    """Each is there for a reason: docs/how-to/clusters.md and decision 14 say which."""
    cluster = SlurmCluster(
        partition="gpu", account="lab", qos="high", time_limit="30", gres="gpu:2",
        constraint="h100", extra={"mem": "0", "reservation": "r1"},
    )  # fmt: skip
    assert build_options(ORDER, 7, cluster, Path("/runs/r")) == [
        f"--job-name=gonogo-{ORDER.run}.7", "--nodes=2", "--ntasks-per-node=1", "--no-requeue",
        "--signal=B:TERM@120", "--output=/runs/r/slurm.log", "--open-mode=append", "--export=NIL",
        "--partition=gpu", "--account=lab", "--qos=high", "--time=30", "--gres=gpu:2",
        "--constraint=h100", "--mem=0", "--reservation=r1",
    ]  # fmt: skip


def test_a_node_that_ends_badly_does_not_have_srun_end_the_others() -> None:
    """Their keepers have to say how their parts ended; only a look ends the job at once."""
    *_, looks, _, _, keeps, _ = build_script(ORDER, 7, {}, RUN_DIR).splitlines()
    assert "--kill-on-bad-exit=1" in looks
    assert looks.endswith("--look &")
    assert "--kill-on-bad-exit=0" in keeps
    assert keeps.endswith("--token 7 &")


def test_values_of_the_environment_cannot_become_commands() -> None:
    script = build_script(ORDER, 7, {"A": "x; rm -rf $HOME", "BAD-NAME": "y"}, RUN_DIR)
    assert "export A='x; rm -rf $HOME'" in script
    assert "BAD-NAME" not in script
    assert script.splitlines()[-2].startswith("srun ")


def test_the_batch_script_asks_the_run_to_leave_and_waits_for_it(tmp_path: Path) -> None:
    """With a program `srun` that runs for a moment, and a Python that records its arguments."""
    python, srun, said = (tmp_path / name for name in ("python", "srun", "said"))
    python.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    begun, leave = tmp_path / "begun", tmp_path / "leave"
    srun.write_text(
        f'#!/bin/sh\ncase "$*" in *--look) exit 0;; esac\n'
        f"touch {begun}\nwhile ! [ -e {leave} ]; do sleep 0.1; done\nexit 7\n"
    )
    for program in (python, srun):
        program.chmod(0o755)
    script = build_script(ORDER, 7, {"PATH": f"{tmp_path}:/usr/bin:/bin"}, RUN_DIR)
    path = tmp_path / "job.sh"
    path.write_text(script.replace(own_python(), str(python)))
    job = subprocess.Popen(["bash", str(path)])
    wait_until(begun.exists, "srun")
    job.terminate()
    wait_until(said.exists, "the request")
    assert job.poll() is None, "it waits until all have left"
    assert said.read_text().split()[:3] == ["-m", "worker.node", ORDER.run]
    assert said.read_text().split()[-1] == "--leave"
    leave.touch()
    assert job.wait(30) == 7


NODES = """#!/bin/sh
case "$*" in *--look) exit $LOOKS;; esac
echo "$@" >> $BEGUN
exit 7
"""


@pytest.mark.parametrize(
    ("nodes", "looks", "code", "begins"),
    [
        (1, 2, 7, True), (2, 0, 7, True), (2, 2, 2, False), (2, 124, 124, False),
    ],
)  # fmt: skip
def test_a_node_that_does_not_see_its_order_is_waited_for_by_none(
    tmp_path: Path, nodes: int, looks: int, code: int, begins: bool
) -> None:
    srun, begun = tmp_path / "srun", tmp_path / "begun"
    srun.write_text(NODES)
    srun.chmod(0o755)
    path, environ = f"{tmp_path}:/usr/bin:/bin", {"LOOKS": str(looks), "BEGUN": str(begun)}
    order = make_order(nodes=nodes, world_size=nodes)
    script = build_script(order, 7, {"PATH": path, **environ}, RUN_DIR)
    done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, timeout=30)
    assert done.returncode == code
    assert begun.exists() is begins
    assert (b"a node has not seen its order" in done.stdout) is (code == 124)


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


GREETING = """
-----------------------------------------------------------------
          Welcome to the Stampede3 Supercomputer
-----------------------------------------------------------------

--> Verifying valid submit host (login4)...OK
"""


@pytest.mark.parametrize("said", ["519605\n", "519605;ours\n", f"{GREETING}519605\n"])
def test_the_number_of_a_job_is_found_behind_what_a_site_has_sbatch_say(
    tmp_path: Path, said: str
) -> None:
    (tmp_path / ORDER.run).mkdir()
    engine = Slurm(tmp_path, SlurmCluster(), {}, Answers(sbatch=(0, said, "")))
    assert engine.submit(ORDER, 7).name == "519605"


def test_a_job_of_which_no_number_is_told_is_looked_for_by_its_name(tmp_path: Path) -> None:
    (tmp_path / ORDER.run).mkdir()
    answers = Answers(sbatch=(0, GREETING, ""))
    engine = Slurm(tmp_path, SlurmCluster(), {}, answers)
    with pytest.raises(Unavailable, match="no job's number"):
        engine.submit(ORDER, 7)
    answers.answers["squeue"] = (0, "519605\n", "")
    assert engine.submit(ORDER, 7).name == "519605"


def test_an_sbatch_that_was_killed_has_refused_nothing(tmp_path: Path) -> None:
    (tmp_path / ORDER.run).mkdir()
    with pytest.raises(Unavailable, match="signal 9"):
        Slurm(tmp_path, SlurmCluster(), {}, Answers(sbatch=(-9, "", ""))).submit(ORDER, 7)


def test_a_command_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine.slurm.COMMAND_LIMIT_S", 0.5)
    with pytest.raises(Unavailable, match=r"^sleep: no answer in 0.5 s$"):
        run_command(["sleep", "60"])


def test_no_job_is_stopped_that_bears_the_number_of_ours_and_another_name(tmp_path: Path) -> None:
    """A controller that lost its state counts from 1 again."""
    answers = Answers()
    Slurm(tmp_path, SlurmCluster(), {}, answers).stop(HANDLE)
    assert answers.asked == [["scancel", f"--name={NAME}"]]


FAILED = "sbatch: error: Batch job submission failed: "
ANY_LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("sbatch: error: Requested node configuration is not available", Rejected),
        ("sbatch: error: Unable to contact slurm controller", Unavailable),
        (f"{FAILED}Zero Bytes were transmitted or received", Unavailable),
        (f"{FAILED}Protocol authentication error", Unavailable),
        (f"{FAILED}Slurm backup controller in standby mode", Unavailable),
        (f"{FAILED}Required partition not available (inactive or drain)", Unavailable),
        (f"{FAILED}Required node not available (down, drained or reserved)", Unavailable),
        (f"{FAILED}Invalid partition name specified", Rejected),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{ANY_LIMIT}", Unavailable),
        (f"sbatch: error: AssocGrpSubmitJobsLimit\n{FAILED}{ANY_LIMIT}", Unavailable),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{FAILED}{ANY_LIMIT}", Rejected),
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


JOB_LINE = f"JobId=12 JobName={NAME} JobState={{}} Reason=None NodeList=(null) NumNodes=2"


def test_a_job_that_had_ended_has_ended_once_slurm_forgets_it(tmp_path: Path) -> None:
    """With a `MinJobAge` below a minute that is before its end is believed."""
    (tmp_path / ORDER.run).mkdir()
    answers = Answers(scontrol=(0, JOB_LINE.format("CANCELLED"), ""))
    engine = Slurm(tmp_path, SlurmCluster(), {}, answers)
    told = engine.find(HANDLE)
    assert isinstance(told, Ended)
    forgotten = (1, "", "slurm_load_jobs error: Invalid job id specified")
    answers.answers["scontrol"] = forgotten
    assert engine.find(HANDLE) == told
    answers.answers["scontrol"] = (0, JOB_LINE.format("PENDING"), "")
    assert isinstance(engine.find(HANDLE), Running)
    answers.answers["scontrol"] = forgotten
    assert isinstance(engine.find(HANDLE), Unknown), "it was queued again after its end"


class Requeued(Answers):
    """A job that a controller which crashed has queued again: it has no nodes any more."""

    def __init__(self, state: str, nodes: str) -> None:
        super().__init__()
        self.state, self.nodes = state, nodes

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        said = self.nodes if "node" in command else JOB_LINE.format(self.state)
        said = "12\n" if command[0] == "squeue" else said
        return subprocess.CompletedProcess(command, 0, said, "")


def begin(runs: Path) -> None:
    """Let node 1's keeper have come on a host, and node 0's have recorded it."""
    run_dir = runs / ORDER.run
    keeping = replace(own_keeping(node=1, token=7, address="x:1"), host="node2.cluster")
    save_json(run_dir / MEET_NAME.format(1), keeping.document(1.0))
    save_json(run_dir / "keeper.json", {"v": 1})


def test_a_job_that_began_and_waits_again_is_told_from_one_that_waits_its_turn(
    tmp_path: Path,
) -> None:
    (tmp_path / ORDER.run).mkdir()
    engine = Slurm(tmp_path, SlurmCluster(), {}, Requeued("PENDING", ""))
    first = engine.find(HANDLE)
    assert isinstance(first, Running)
    assert (first.waits, first.again) == (True, False)
    begin(tmp_path)
    second = engine.find(HANDLE)
    assert isinstance(second, Running)
    assert (second.waits, second.again) == (True, True)


NO_PYTHON = """first
srun: error: node2: task 1: Exited with exit code 2
slurmstepd-node2: error: execve(): /v/bin/python: No such file or directory
"""


@pytest.mark.parametrize(
    ("state", "made", "said"),
    [
        ("RUNNING", [], True),
        ("RUNNING", ["keeper.json", ".meet_node0.json"], True),
        ("RUNNING", ["keeper.json", ".meet_node0.json", ".met.json"], False),
        ("RUNNING", ["keeper.json"], False),
        ("FAILED", [], True),
    ],
)
def test_what_a_job_printed_is_told_where_a_node_does_not_begin(
    tmp_path: Path, state: str, made: list[str], said: bool
) -> None:
    folder = tmp_path / ORDER.run
    folder.mkdir()
    (folder / "slurm.log").write_text(NO_PYTHON)
    for name in made:
        save_json(folder / name, {"v": 1})
    found = Slurm(tmp_path, SlurmCluster(), {}, Requeued(state, "")).find(HANDLE)
    text = found.proof if isinstance(found, Ended) else found.text
    last = " · ".join(NO_PYTHON.splitlines()[1:])
    assert text.endswith(f"it printed: {last}") is said
    assert "first" not in text
    assert isinstance(found, Ended) is (state == "FAILED")
    assert isinstance(found, Running) is (state == "RUNNING")
    if isinstance(found, Running):
        assert (found.waits, found.again) == (said, False)


def test_a_job_that_could_not_open_its_log_asks_whether_its_node_sees_the_home(
    tmp_path: Path,
) -> None:
    (tmp_path / ORDER.run).mkdir()
    line = f"JobName={NAME} JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53 NodeList=node2"

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        said = "NodeName=node2 State=IDLE" if "node" in command else line
        return subprocess.CompletedProcess(command, 0, said, "")

    found = Slurm(tmp_path, SlurmCluster(), {}, run).find(HANDLE)
    assert isinstance(found, Ended)
    assert "FAILED (JobLaunchFailure), and node2 answers" in found.proof
    asked = f"it has not opened {tmp_path / ORDER.run / 'slurm.log'}: is that path there"
    assert asked in found.proof


AFTERWARDS = """srun: launch/slurm: _step_signal: Terminating StepId=14.0
slurmstepd-node1: error: *** STEP 14.0 ON node1 CANCELLED AT 2026-11-26T17:58:48 ***
srun: error: node1: task 0: Terminated
srun: Force Terminated StepId=14.0
"""


def test_what_a_node_said_is_told_and_not_that_the_others_were_ended_for_it(tmp_path: Path) -> None:
    """As Slurm 22.05 prints it where the second of two nodes has no such Python."""
    log = tmp_path / "slurm.log"
    cause, how = NO_PYTHON.splitlines()[2], NO_PYTHON.splitlines()[1]
    log.write_text(f"first\n{how}\n{AFTERWARDS.splitlines()[0]}\n{cause}\n{AFTERWARDS}")
    assert load_last_words(log) == f"{how} · {cause}"
    log.write_text(AFTERWARDS)
    assert load_last_words(log) == " · ".join(AFTERWARDS.splitlines()[2:])


def test_a_job_that_never_began_has_no_node_that_must_answer(tmp_path: Path) -> None:
    (tmp_path / ORDER.run).mkdir()
    found = Slurm(tmp_path, SlurmCluster(), {}, Requeued("CANCELLED", "")).find(HANDLE)
    assert isinstance(found, Ended)
    assert "it had no node" in found.proof


def test_what_a_plan_asks_for_lies_over_what_holds_for_every_job() -> None:
    usual = SlurmCluster(partition="main", account="lab", extra={"mem": "0", "reservation": "r"})
    own = SlurmCluster(partition="gpu", time_limit="30", extra={"mem": "8"})
    found = lay_over(usual, make_order(cluster=ClusterRequest(slurm=own)))
    extra = {"mem": "8", "reservation": "r"}
    assert found == SlurmCluster(partition="gpu", account="lab", time_limit="30", extra=extra)
    assert lay_over(usual, make_order()) == usual


def test_what_holds_for_every_job_stands_in_a_file_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, asked, file = tmp_path / "bin", tmp_path / "asked", tmp_path / "slurm.yaml"
    programs.mkdir()
    for name, text in (("squeue", "true"), ("sbatch", f"echo $* > {asked}; echo 7")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    file.write_text("partition: gpu\ntime_limit: '4:00:00'\nextra: {cpus-per-task: 16}\n")
    environ = {"GONOGO_HOME": str(tmp_path), "GONOGO_ENGINE": "slurm"}
    usual = {"--partition=gpu", "--time=4:00:00", "--cpus-per-task=16"}
    for more, found in (({"GONOGO_SLURM_DEFAULTS": str(file)}, usual), ({}, set())):
        settings = load_settings({**environ, **more})
        (settings.runs / ORDER.run).mkdir(parents=True, exist_ok=True)
        engine = build_engine(settings)
        assert engine is not None
        assert engine.submit(ORDER, 7).name == "7"
        assert usual & set(asked.read_text().split()) == found
    with pytest.raises(Rejected, match="GONOGO_SLURM_DEFAULTS"):
        build_engine(load_settings({**environ, "GONOGO_SLURM_DEFAULTS": str(programs)}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file"),
        ("queue: gpu\n", "slurm.yaml: queue: "),
        ("extra: {no-kill: true}\n", "slurm.yaml: extra.no-kill: "),
        ("a: 1\na: 2\n", "slurm.yaml: "),
    ],
)
def test_a_file_of_the_settings_that_says_what_no_plan_may_is_refused(
    tmp_path: Path, text: str | None, why: str
) -> None:
    file = tmp_path / "slurm.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Rejected, match=re.escape(why)) as caught:
        load_defaults(file)
    assert str(caught.value).startswith("GONOGO_SLURM_DEFAULTS: ")


def test_each_rank_gets_a_gpu_where_nobody_says_how_many() -> None:
    order = make_order(nodes=2, world_size=8, profile="h100")
    assert lay_over(SlurmCluster(), order).gres == "gpu:4"
    for said in (SlurmCluster(gres="gpu:h100:8"), SlurmCluster(extra={"gpus-per-node": "8"})):
        assert lay_over(said, order) == said
