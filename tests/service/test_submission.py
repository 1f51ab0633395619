"""What does the service answer to a submission that would fail later, and to one that may wait?"""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.plan import hardware_profiles
from gonogo.contract.worker_messages import ClaimRequest
from gonogo.contract.workload import RecordedPatch
from gonogo.planning.source import bundled_plan, parse_plan
from service.agent.claims import fits
from service.db.schema import RunRow
from tests.service.conftest import Plane


@pytest.mark.parametrize("route", ["/experiments", "/plans/validate"])
@pytest.mark.parametrize(
    "sets",
    [
        {"train.optim.lr": "fast", "train.dtype": "fp13", "phases.smoke.env.NSA_BOGUS": 1},
        {"phases.smoke.env.LD_PRELOAD": "x", "phases.smoke.stepz": 3, "profile": "tpu"},
    ],
    ids=["by the workload", "by the plan"],
)
def test_every_problem_is_in_the_answer_with_its_path(
    plane: Plane, route: str, sets: dict[str, Any]
) -> None:
    answer = plane.call("POST", route, json={"plan": "demo", "set": sets})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert {row["path"] for row in answer.json()["errors"]} == set(sets)
    assert all(row["message"] for row in answer.json()["errors"])


@pytest.mark.parametrize("profile", hardware_profiles())
def test_the_real_plan_is_accepted_on_every_profile(plane: Plane, profile: str) -> None:
    body = {"plan": "m7c-125m", "set": {"profile": profile}}
    assert plane.call("POST", "/plans/validate", json=body).status_code == 200
    dry = plane.call("POST", "/experiments", json={**body, "dry_run": True}).json()
    assert [order["phase"] for order in dry["orders"]][-1] == "production"


@pytest.mark.parametrize("value", [2**53, 2**60 + 1, 1e-4, "\x00", [], {}, None, "x" * 100_000])
def test_no_value_is_an_error_of_ours(plane: Plane, value: Any) -> None:
    for path in ("train.seed", "phases.smoke.steps", "name", "phases.smoke.env", "workload"):
        answer = plane.call("POST", "/plans/validate", json={"plan": "demo", "set": {path: value}})
        assert answer.status_code in (200, 422), answer.text


def test_what_only_some_workers_start_is_accepted_with_a_warning(plane: Plane) -> None:
    sets = {"workload.entry": "my.trainer", "train": {"lr": 1}}
    answer = plane.call("POST", "/experiments", json={"plan": "demo", "set": sets})
    assert answer.status_code == 201
    warnings = answer.json()["warnings"]
    (warning,) = [row for row in warnings if "data: a script that is attached" not in row]
    assert len(warnings) == 2
    assert "GONOGO_WORKER_ALLOW=my.trainer" in warning
    assert plane.call("POST", "/experiments", json={"plan": "demo"}).json()["warnings"] == []
    checked = plane.call("POST", "/plans/validate", json={"plan": "demo", "set": sets}).json()
    assert checked["warnings"] == warnings


def test_gpus_that_no_worker_has_are_said(plane: Plane) -> None:
    """A host without a GPU looked like one whose devices are busy."""

    def submit() -> dict[str, Any]:
        found: dict[str, Any] = plane.call("POST", "/experiments", json={"plan": "m7c-125m"}).json()
        return found

    plane.worker().claim()
    lacking = "no worker that is up has 2 GPUs of profile a100-pcie-gen4; it waits for one"
    made = submit()
    assert made["warnings"] == [lacking]
    assert made["waiting_for"] == (
        "a worker with 2 free GPUs of profile a100-pcie-gen4, for phase sanity"
    )
    assert plane.submit() is not None
    assert plane.call("POST", "/experiments", json={"plan": "demo"}).json()["warnings"] == []
    gpus = ["GPU-1", "GPU-2"]
    two = plane.worker("w2")
    two.claim(devices=gpus, free=[], profiles=["h100"])
    assert submit()["warnings"] == [lacking]
    two.claim(devices=gpus[:1], free=[], profiles=["a100-pcie-gen4"])
    assert submit()["warnings"] == [lacking]
    two.claim(devices=gpus, free=[], profiles=["a100-pcie-gen4"])
    assert submit()["warnings"] == []


def test_a_run_is_ordered_under_its_patch(plane: Plane) -> None:
    plane.submit(set={"remedies": {"out_of_memory": {"workload": {"parallel": "fsdp"}}}})
    change = {
        "diagnosis": "out_of_memory",
        "env": {"NSA_TB_DISABLE": "1"},
        "train": {"data": "local_text"},
        "workload": {"parallel": "fsdp"},
    }

    def work(session: Any) -> None:
        for run in session.query(RunRow):
            run.change = change

    plane.context.store.write(work)
    order = plane.worker().claim()
    assert order is not None
    assert (order.train["parallel"], order.train["data"]) == ("fsdp", "local_text")
    assert order.identity.parallel == "fsdp"
    assert order.env["NSA_TB_DISABLE"] == "1"
    assert order.init_from is None


def test_a_patch_may_ask_for_other_devices() -> None:
    plan = parse_plan(bundled_plan("m7c-125m"))
    alone = RecordedPatch.model_validate({"workload": {"world_size": 1}})
    four = RecordedPatch.model_validate({"workload": {"world_size": 4}})
    said = ClaimRequest(worker="w", host="h", boot_id="b", pid=1, version="1")
    one, two = ["cuda:0"], ["cuda:0", "cuda:1"]
    assert [fits(said, one, plan), fits(said, one, plan, alone)] == [False, True]
    assert [fits(said, two, plan), fits(said, two, plan, four)] == [True, False]


@pytest.mark.parametrize(("ranks", "free", "taken"), [(4, 2, False), (4, 4, True), (1, 1, True)])
def test_a_phase_may_ask_for_other_devices_than_its_plan(
    plane: Plane, ranks: int, free: int, taken: bool
) -> None:
    """It was given to a host with as many as the plan has, which is two."""
    wide = {"workload": {"world_size": ranks}, "train": {"batch": {"global_seqs": ranks}}}
    plane.submit("m7c-125m", set={f"phases.sanity.{name}": value for name, value in wide.items()})
    worker = plane.worker()
    gpus = [f"GPU-{number}" for number in range(free)]
    order = worker.claim(devices=gpus, free=gpus, profiles=["a100-pcie-gen4"])
    assert (order is not None) is taken


def test_a_plan_waits_for_the_devices_of_its_largest_phase(plane: Plane) -> None:
    gpus = ["GPU-1", "GPU-2"]
    plane.worker().claim(devices=gpus, free=[], profiles=["a100-pcie-gen4"])
    larger = {
        "phases.production.workload": {"world_size": 4},
        "phases.production.train": {"batch": {"global_seqs": 4}},
    }
    asked = {"plan": "m7c-125m", "set": larger}
    told = plane.call("POST", "/experiments", json=asked).json()["warnings"]
    assert told == ["no worker that is up has 4 GPUs of profile a100-pcie-gen4; it waits for one"]
