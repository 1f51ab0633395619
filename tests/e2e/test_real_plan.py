"""The plan of the 125M model, in small, goes through the real service to production GO (X1)."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gonogo.planning.source import bundled_plan
from gonogo.rundir import RunDir
from tests.e2e.lab import Lab, read_json

# The bundled plan of the 125M model in small: its gates, conditions and answers, tiny steps.


STEPS = {"sanity": 1, "synthetic": 5, "smoke": 12, "extended": 16, "production": 24}
WARMUP = 4
STEP_CV = 2.0
"""A pair of busy cores is not as steady as a pair of GPUs."""


def miniature(**changes: Any) -> dict[str, Any]:
    """Return the plan with a small model, few steps and short windows.

    Its gates, conditions, confirmation, remedies and approvals are the plan's own.
    """
    plan = bundled_plan("m7c-125m")
    plan["allow_faults"] = True
    plan["train"] = {"config": "demo", "seed": 1337, "dtype": "fp32"}
    for phase in plan["phases"]:
        phase["steps"] = STEPS[phase["name"]]
        if phase["data"] != "synthetic":
            phase["data"] = "local_text"
        if "checkpoint" in phase:
            phase["checkpoint"] = {"every_steps": phase["steps"] // 2, "every_s": 3600}
        for criterion in phase["gate"]:
            if "warmup_steps" in criterion:
                criterion["warmup_steps"] = WARMUP
            if "min_samples" in criterion:
                criterion["min_samples"] = phase["steps"] - WARMUP
            if criterion["id"] == "steady_steps":
                criterion["pass_below"] = STEP_CV
    return {**plan, **changes}


def script_of(folder: Path, second: Mapping[str, Any] = {}, **readings: Any) -> Path:
    """Write what two healthy A100s would say, or `readings`, and the second besides; its file."""
    devices = [
        {"uuid": f"GPU-{index}", "index": index, "name": "NVIDIA A100 80GB PCIe"}
        for index in (0, 1)
    ]
    healthy = {
        "util": 94.0,
        "mem_used_mb": 21_000.0,
        "throttle": [],
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "nvlink_errors": 0,
        "temp_c": 61.0,
    }
    samples = [
        {"at_s": 0, "uuid": row["uuid"], **healthy, **readings, **(second if row["index"] else {})}
        for row in devices
    ]
    path = folder / "devices.json"
    path.write_text(json.dumps({"devices": devices, "samples": samples}))
    return path


# The plan of the 125M model, in small, goes through the real service to production GO (X1).


SCRIPT = script_of(Path(tempfile.mkdtemp(prefix="gonogo-a100-")))
ENVIRON = {"GONOGO_DEVICES_SCRIPT": str(SCRIPT)}


def difference(one: Any, other: Any, at: str = "") -> set[str]:
    """The dotted paths at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            path
            for key in {*one, *other}
            for path in difference(one.get(key), other.get(key), f"{at}.{key}".strip("."))
        }
    if isinstance(one, list) and isinstance(other, list):
        named = [{row.get("name", row.get("id")): row for row in rows} for rows in (one, other)]
        return difference(named[0], named[1], at)
    return set() if one == other else {at}


def test_the_miniature_is_the_real_plan_but_for_its_size() -> None:
    """What is asked, waited for, confirmed, answered and approved is what the real plan says."""
    of_a_phase = {"steps", "data", "checkpoint.every_steps", "checkpoint.every_s"}
    sizes = {f"phases.{phase}.{key}" for phase in STEPS for key in of_a_phase}
    of_a_criterion = ("warmup_steps", "min_samples")
    windows = {
        f"phases.{row['name']}.gate.{criterion['id']}.{key}"
        for row in bundled_plan("m7c-125m")["phases"]
        for criterion in row["gate"]
        for key in of_a_criterion
    }
    bounds = {f"phases.{phase}.gate.steady_steps.pass_below" for phase in ("smoke", "extended")}
    real, small = bundled_plan("m7c-125m"), miniature()
    assert real.pop("confirm") == small.pop("confirm")
    model = {"allow_faults", "train.config", "train.dtype"}
    assert difference(real, small) <= sizes | windows | bounds | model
    assert bounds <= difference(real, small)


@pytest.mark.long
def test_every_phase_is_go_and_every_criterion_was_measured(lab: Lab) -> None:
    view = lab.wait_for_end(lab.submit(miniature()))
    assert (view.state, view.verdict) == ("finished", "GO"), view.model_dump_json(indent=1)
    assert [phase.name for phase in view.phases] == list(STEPS)
    for phase in view.phases:
        (name,) = phase.runs
        run = lab.client.run(name)
        assert (run.verdict, phase.verdict) == ("GO", "GO")
        folder = RunDir(Path(str(run.dir)))
        assert read_json(folder.order)["profile"] == "a100-pcie-gen4"
        assert read_json(folder.preflight)["devices"][1]["name"] == "NVIDIA A100 80GB PCIe"
    decisions = lab.client.get(f"/experiments/{view.id}/decisions")["items"]
    gates = {row["phase"]: row["criteria"] for row in decisions}
    assert list(gates) == list(STEPS)
    measured = {row["id"] for gate in gates.values() for row in gate if row["outcome"] == "pass"}
    assert measured >= {"throughput", "utilisation", "balance", "memory", "memory_slope"}
    assert all(row["outcome"] == "pass" for gate in gates.values() for row in gate)


def of_phase(*names: str, **changes: Any) -> dict[str, Any]:
    """Return the miniature with these phases alone, without conditions on the others."""
    plan = miniature(**changes)
    plan["phases"] = [phase for phase in plan["phases"] if phase["name"] in names]
    for phase in plan["phases"]:
        for criterion in phase["gate"]:
            criterion.pop("evidence_from", None)
            criterion.pop("due", None)
    return plan


@pytest.mark.long
def test_a_parameter_marked_ready_twice_is_answered_by_fsdp(lab: Lab) -> None:
    """What DDP that looks for unused parameters says is real; the plan's remedy passes (R22)."""
    plan = of_phase("synthetic")
    small = {"layers": 2, "seq_len": 64}
    plan["train"] |= {
        "model": {"gradient_checkpointing": "reentrant", **small},
        "params": 1_684_272,
    }
    plan["phases"][0] |= {"steps": 70, "checkpoint": {"every_steps": 10, "every_s": 3600}}
    plan["workload"]["env"] |= {"NSA_DDP_STATIC_GRAPH": 0, "NSA_DDP_FIND_UNUSED": 1}
    view = lab.wait_for_end(lab.submit(plan))
    assert (view.state, view.verdict) == ("finished", "CONDITIONAL_GO"), view.summary
    assert [row.id for row in view.conditions] == ["synthetic:remedied"]
    (phase,) = view.phases
    failed, *answers = [lab.client.run(name) for name in phase.runs]
    assert failed.outcome is not None
    assert (failed.outcome.code, failed.verdict) == ("nonzero_exit", "NO_GO")
    decisions = lab.client.get(f"/experiments/{view.id}/decisions")["items"]
    told = {row["id"]: row["evidence"] for row in decisions[0]["criteria"]}
    assert "with the remedy of ddp_marked_ready_twice" in told["remedied"]
    orders = [read_json(RunDir(Path(str(answer.dir))).order) for answer in answers]
    assert {(row["reason"], row["identity"]["parallel"]) for row in orders} == {("remedy", "fsdp")}
    assert [row["steps"] for row in orders] == [51, 70]
    assert [row["resume_from"] and row["resume_from"]["step"] for row in orders] == [None, 51]
    assert [answer.verdict for answer in answers] == ["GO", "CONDITIONAL_GO"]


@pytest.mark.long
def test_devices_that_idle_are_a_condition_that_the_next_phase_misses(lab: Lab) -> None:
    script_of(SCRIPT.parent, util=40.0)
    try:
        plan = miniature()
        plan["phases"] = [row for row in plan["phases"] if row["data"] != "synthetic"]
        view = lab.wait_for_end(lab.submit(plan))
    finally:
        script_of(SCRIPT.parent)
    smoke, extended, production = view.phases
    assert smoke.verdict == "CONDITIONAL_GO"
    assert (view.state, view.verdict, extended.verdict) == ("finished", "NO_GO", "CONDITIONAL_GO")
    missed = {row.criterion for row in view.conditions if row.state == "missed"}
    assert missed == {"utilisation"}
    assert production.runs == []


QUICK_STALL = {"suspect_s": 2, "halt_s": 5, "halt_x": 8, "min_steps": 3}
"""The demo's: what the real plan waits for a hang, nobody need wait for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a phase ends that fails in one of its ways; the rows of the runbook's outcomes."""

    fault: str
    outcome: str
    verdict: str = "NO_GO"
    state: str = "finished"
    reasons: tuple[str, ...] = ("first",)
    """Why each of its runs was started."""
    resumed: tuple[int | None, ...] = (None,)
    """Step of the checkpoint that each of them resumed from."""
    diagnosis: str | None = None


WAYS = {
    "a rank that is killed is the user's, and named to its peers": End(
        fault="crash:step=8", outcome="nonzero_exit", diagnosis="killed"
    ),
    "another configuration never begins": End(
        fault="wrong-config", outcome="config_mismatch", diagnosis="wrong_config"
    ),
    "a hang with all outputs off is NO_GO at once (R15)": End(
        fault="hang:step=8", outcome="stalled", diagnosis="hang_in_compute"
    ),
    "a loss that is NaN is tried again, then with every kernel": End(
        fault="nan:step=8",
        outcome="non_finite",
        reasons=("first", "confirm", "confirm", "confirm"),
        resumed=(None, 6, 6, 6),
        diagnosis="non_finite_loss",
    ),
    "a failing device resumes from the last checkpoint, twice": End(
        fault="xid:step=8",
        outcome="hardware",
        verdict="INCONCLUSIVE",
        state="awaiting_decision",
        reasons=("first", "resume", "resume"),
        resumed=(None, 6, 6),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("way", list(WAYS), ids=lambda way: re.sub(r"\W+", "_", way))
def test_a_run_that_fails_ends_as_the_runbook_says(lab: Lab, way: str) -> None:
    """`smoke` saves after step 6 of 12; each fault strikes every attempt of it."""
    wanted = WAYS[way]
    view = lab.wait_for_end(
        lab.submit(of_phase("smoke", watch={"stall": QUICK_STALL}), fault=wanted.fault)
    )
    assert (view.state, view.verdict) == (wanted.state, wanted.verdict), view.summary
    (phase,) = view.phases
    runs = [lab.client.run(name) for name in phase.runs]
    assert tuple(run.reason for run in runs) == wanted.reasons
    assert {run.outcome and run.outcome.code for run in runs} == {wanted.outcome}
    assert tuple(run.resume_from and run.resume_from.step for run in runs) == wanted.resumed
    decisions = lab.client.get(f"/experiments/{view.id}/decisions")["items"]
    assert decisions[-1]["diagnosis"] == wanted.diagnosis
    assert view.cause is not None
    assert view.next, "there is always a next command"
    if view.state != "finished":
        lab.client.post(f"/experiments/{view.id}/cancel", {"reason": "seen"})
