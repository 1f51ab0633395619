"""`gonogo up --engine slurm` on a real Slurm of two nodes: plans that span both, judged as ever."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.client import Client
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack
from gonogo.contract.api import RunView
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import RunState
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeClass, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.process_records import load_keeping
from gonogo.supervise.processes import send_signal
from tests.e2e.lab import Lab, clean_environ, one_phase_plan, processes_of, read_json
from tests.slurm_lab import Lab as Slurm
from tests.slurm_lab import can_run, slurm_lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("slurm"),
    pytest.mark.skipif(not can_run(), reason="namespaces need root, and ip"),
]
ON_TWO = {"workload.nodes": 2, "cluster.slurm": {"partition": "main", "time_limit": "20"}}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_lab(slurmd_timeout=300) as found:  # Slurm's default
        yield found


@pytest.fixture(scope="module")
def lab(slurm: Slurm) -> Iterator[Lab]:
    home = Path(tempfile.mkdtemp(prefix="gonogo-e2e-"))
    environ = {**clean_environ(home), **slurm.environ, "GONOGO_ENGINE": "slurm"}
    settings = load_settings(environ)
    stack = Stack(settings=settings, host="0.0.0.0", port=0, engine=settings.engine)
    with stack, Client(stack.url, settings.key()) as client:
        yield Lab(stack=stack, client=client)
    shutil.rmtree(home, ignore_errors=True)


def findings_of(lab: Lab, run: str) -> list[dict[str, Any]]:
    return list(lab.client.pages(f"/runs/{run}/findings"))


def test_a_plan_on_two_nodes_ends_in_go_by_jobs_of_slurm(lab: Lab, slurm: Slurm) -> None:
    experiment = lab.submit(one_phase_plan(), **ON_TWO)
    view = lab.wait_for_end(experiment)
    assert view.verdict is Verdict.GO, view
    run = lab.run_of(experiment)
    assert run is not None
    folder = RunDir(Path(run.dir or ""))
    keepings = [load_keeping(folder.path, node) for node in (0, 1)]
    assert [row.host for row in keepings if row is not None] == ["node1", "node2"]
    here = lab.submit(one_phase_plan(), **{"cluster.slurm.partition": "main"})
    assert lab.wait_for_end(here).verdict is Verdict.GO
    decisions = [
        next(iter(lab.client.pages(f"/experiments/{one}/decisions"))) for one in (experiment, here)
    ]
    digests = {row["rules"]["plan_digest"] for row in decisions}
    assert len(digests) == 1, "the plan is the same on one host and on two"
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 60)


def halt_of(
    lab: Lab, slurm: Slurm, spec: str, **sets: object
) -> tuple[dict[str, Any], OutcomeCode]:
    """Return what ended a run with a fault, and as what; nothing of it is left on any node."""
    experiment = lab.submit(one_phase_plan(), fault=spec, **ON_TWO, **sets)
    assert lab.wait_for_end(experiment).verdict is Verdict.NO_GO
    run = lab.run_of(experiment)
    assert run is not None
    assert run.outcome is not None
    halts = [row for row in findings_of(lab, run.id) if row["severity"] == "halt"]
    lab.wait(lambda: not processes_of(run.id), 60)
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 120)
    return halts[0], run.outcome.code


EITHER = pytest.mark.parametrize("rank", [0, 1], ids=["on the first node", "on the second node"])


@EITHER
@pytest.mark.parametrize(
    ("spec", "detectors", "code"),
    [
        ("hang:step=12,section=backward", {"stall"}, OutcomeCode.STALLED),
        ("freeze:step=9", {"alive_lost", "stall"}, OutcomeCode.STALLED),
        ("crash:step=8", {"process_death"}, OutcomeCode.NONZERO_EXIT),
        ("desync:step=12", {"stall"}, OutcomeCode.STALLED),
        ("xid:code=79,step=12", {"hardware"}, OutcomeCode.HARDWARE),
    ],
    ids=["hang", "freeze", "crash", "desync", "xid"],
)
def test_a_fault_on_either_node_is_no_go_and_names_rank_and_node(
    lab: Lab, slurm: Slurm, spec: str, detectors: set[str], code: OutcomeCode, rank: int
) -> None:
    finding, ended = halt_of(lab, slurm, f"{spec},rank={rank}")
    assert (finding["detector"] in detectors, finding["rank"], ended) == (True, rank, code), finding
    assert f"on node {rank}" in finding["text"]


@pytest.mark.parametrize(
    ("spec", "detector", "code"),
    [
        ("nan:step=15", "non_finite", OutcomeCode.NON_FINITE),
        ("wrong-config", "identity", OutcomeCode.CONFIG_MISMATCH),
        ("slow:factor=5,from=20", "slow", OutcomeCode.TOO_SLOW),
        ("starve:share=0.7,from=10", "loader", OutcomeCode.TOO_SLOW),
        ("disk:step=12", "disk", OutcomeCode.RESOURCE_LIMIT),
    ],
    ids=lambda value: str(value).partition(":")[0],
)
def test_a_fault_of_the_whole_run_on_two_nodes_is_no_go(
    lab: Lab, slurm: Slurm, spec: str, detector: str, code: OutcomeCode
) -> None:
    # What is slow must not pass the demo's stall limit on a machine that has to share.
    sets = {"watch.stall.halt_s": 60} if spec.startswith("slow") else {}
    finding, ended = halt_of(lab, slurm, spec, **sets)
    assert (finding["detector"], ended) == (detector, code), finding


def test_a_run_that_waits_for_slurm_is_cancelled_and_a_partition_that_is_not_there_is_told(
    lab: Lab, slurm: Slurm
) -> None:
    later = {**ON_TWO, "cluster.slurm.extra": {"reservation": "none"}}
    refused = lab.submit(one_phase_plan(), **later)
    view = lab.wait_for_end(refused)
    run = lab.run_of(refused)
    assert run is not None
    assert run.outcome is not None
    assert (view.verdict, run.outcome.code) == (Verdict.NO_GO, OutcomeCode.START_FAILED)
    slurm.ask("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        waits = lab.submit(one_phase_plan(), **ON_TWO)
        lab.wait(lambda: "PENDING" in slurm.ask("squeue", "--noheader", "--format=%T"), 60)
        lab.wait(lambda: "PartitionDown" in (lab.client.experiment(waits).waiting_for or ""), 60)
        lab.client.post(f"/experiments/{waits}/cancel", {"reason": "no need"})
        assert lab.wait_for_end(waits).verdict is None
        found = lab.run_of(waits)
        assert found is not None
        assert (found.state, found.outcome.code if found.outcome else None) == (
            RunState.ENDED,
            OutcomeCode.CANCELLED,
        )
        order = load_record(RunDir(Path(found.dir or "")).order, Order)
        assert order is not None
        assert order.nodes == 2
    finally:
        slurm.ask("scontrol", "update", "PartitionName=main", "State=UP")
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 60)


def job_of(slurm: Slurm) -> str:
    return slurm.ask("squeue", "--noheader", "--states=RUNNING", "--format=%i").strip()


def test_time_limit_and_scancel_from_outside_are_preemptions_that_the_next_attempt_goes_on_from(
    lab: Lab, slurm: Slurm
) -> None:
    experiment = lab.submit(one_phase_plan(steps=4000), **ON_TWO)
    first = lab.wait_for_step(experiment, 3)
    slurm.shorten(job_of(slurm))
    second = next_attempt(lab, experiment, first)
    begun = second.resume_from.step if second.resume_from is not None else 0
    lab.wait_for_step(experiment, begun + 2)
    slurm.ask("scancel", job_of(slurm))
    third = next_attempt(lab, experiment, second)
    lab.client.post(f"/experiments/{experiment}/cancel", {"reason": "seen enough"})
    lab.wait_for_end(experiment)
    attempts = [lab.client.run(row.id) for row in (first, second)]
    codes = [row.outcome.code for row in attempts if row.outcome is not None]
    assert codes == [OutcomeCode.PREEMPTED, OutcomeCode.PREEMPTED]
    goes_on = third.resume_from.step if third.resume_from is not None else 0
    assert 3 <= begun < goes_on, "each resumed from the last one's checkpoint"
    for row in attempts:
        exits = load_record(RunDir(Path(row.dir or "")).exit, ExitRecord)
        assert exits is not None
        assert {rank.code for rank in exits.ranks.values()} == {3}, "no rank died of a signal"
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 120)


def next_attempt(lab: Lab, experiment: str, run: RunView) -> RunView:
    """Return the attempt after a run, once it has a directory."""

    def begun() -> RunView | None:
        found = lab.run_of(experiment)
        there = found is not None and found.id != run.id and found.dir is not None
        return found if there else None

    found: RunView = lab.wait(begun)
    return found


@pytest.mark.parametrize(
    ("node", "code"),
    [(0, OutcomeCode.KEEPER_LOST), (1, OutcomeCode.NODE_LOST)],
    ids=["of the first node", "of the second node"],
)
def test_a_keeper_that_is_killed_costs_an_attempt_and_no_more(
    lab: Lab, slurm: Slurm, node: int, code: OutcomeCode
) -> None:
    experiment = lab.submit(one_phase_plan(), **ON_TWO)
    first = lab.wait_for_step(experiment, 5)
    keeping = load_keeping(Path(first.dir or ""), node)
    assert keeping is not None
    keeping.ref.send(signal.SIGKILL)
    assert lab.wait_for_end(experiment).verdict is Verdict.GO
    ended = lab.client.run(first.id).outcome
    assert ended is not None
    assert (ended.code, ended.klass) == (code, OutcomeClass.INFRA)
    lab.wait(lambda: not processes_of(first.id), 30)
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 60)


@pytest.mark.timeout(1800)  # a silent node is given its time, and then there is another attempt
@pytest.mark.parametrize(
    ("deaf", "code"),
    [(False, OutcomeCode.STALLED), (True, OutcomeCode.ISOLATED)],
    ids=["between the ranks alone", "from the shared files, too"],
)
def test_a_node_that_is_cut_off_for_good_leaves_nothing_that_runs(
    lab: Lab, slurm: Slurm, deaf: bool, code: OutcomeCode
) -> None:
    plan = one_phase_plan(steps=200)
    if deaf:
        plan["watch"] = {}  # the demo halts sooner than a node counts as silent
    experiment = lab.submit(plan, **ON_TWO)
    run = lab.wait_for_step(experiment, 10)
    folder = RunDir(Path(run.dir or ""))
    keeping = load_keeping(folder.path, 1)
    assert keeping is not None
    follower = read_json(folder.path / "keeper_node1.json")["follower"]["pid"]
    cut = [keeping.ref.pid, follower] if deaf else []
    slurm.link(2, "down")
    for pid in cut:
        send_signal(pid, signal.SIGSTOP)
    try:
        lab.wait(folder.exit.exists)
        record = load_record(folder.exit, ExitRecord)
        assert record is not None
        assert (record.reason, record.unheard) == (code, [1] if deaf else []), record.text
    finally:
        slurm.link(2, "up")
        for pid in cut:
            send_signal(pid, signal.SIGCONT)
    lab.wait(lambda: not processes_of(run.id), 120)
    ended = lab.wait_for_end(experiment)
    assert ended.verdict is (Verdict.GO if deaf else Verdict.NO_GO), "isolation is tried again"
    slurm.wait_for_idle(120)
