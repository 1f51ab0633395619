"""`gonogo up --engine slurm` on a real Slurm of two nodes: plans that span both, judged as ever."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli.client import Client
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import RunState
from gonogo.contract.order import Order
from gonogo.contract.outcome import OutcomeCode
from gonogo.rundir import RunDir, load_record
from gonogo.supervise.node_record import load_keeping
from tests.e2e.lab import Lab, clean_environ, last_step, one_phase_plan, processes_of
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
    with slurm_lab() as found:
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


def test_a_rank_that_hangs_on_the_other_node_is_no_go_and_nothing_is_left(
    lab: Lab, slurm: Slurm
) -> None:
    fault = "hang:rank=1,step=12,section=backward"
    experiment = lab.submit(one_phase_plan(), fault=fault, **ON_TWO)
    assert lab.wait_for_end(experiment).verdict is Verdict.NO_GO
    run = lab.run_of(experiment)
    assert run is not None
    assert run.outcome is not None
    assert run.outcome.code is OutcomeCode.STALLED
    halts = [row for row in findings_of(lab, run.id) if row["severity"] == "halt"]
    assert (halts[0]["rank"], "on node 1" in halts[0]["text"]) == (1, True)
    lab.wait(lambda: not processes_of(run.id), 30)
    lab.wait(lambda: not slurm.ask("squeue", "--noheader").strip(), 60)


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


def test_a_network_that_is_cut_for_twenty_seconds_ends_no_healthy_run(
    lab: Lab, slurm: Slurm
) -> None:
    plan = one_phase_plan(steps=60)
    plan["watch"] = {}  # the demo halts sooner than TCP comes back
    experiment = lab.submit(plan, **ON_TWO)
    run = lab.wait_for_step(experiment, 10)
    folder = RunDir(Path(run.dir or ""))
    slurm.link(2, "down")
    try:
        time.sleep(2.0)
        stood = last_step(folder, 0)
        time.sleep(18.0)
        assert last_step(folder, 0) <= stood + 1, "the ranks need each other at every step"
    finally:
        slurm.link(2, "up")
    found = lab.wait_for_end(experiment)
    assert [row["text"] for row in findings_of(lab, run.id) if row["severity"] == "halt"] == []
    assert found.verdict is Verdict.GO, found
    slurm.wait_for_idle()
