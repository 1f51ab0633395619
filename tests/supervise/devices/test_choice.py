"""The devices of a run: real, scripted, of a fault, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.contract.workload import OURS
from gonogo.supervise.devices.choice import (
    RunDevices,
    choose_devices_of,
    query_devices,
    visible_devices,
)
from gonogo.supervise.devices.device import Device, Scripted
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.keeper.children import samples_devices
from tests.supervise.orders import make_order

XID = "xid:code=79,rank=1,step=12"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Three scripted devices, the second of them busy before any run."""
    path = tmp_path / "script.json"
    devices = [{"uuid": f"GPU-{n}", "index": n, "name": "H200"} for n in range(3)]
    samples = [
        {"uuid": "GPU-1", "mem_used_mb": 9000.0},
        {"uuid": "GPU-2", "at_s": 0, "mem_used_mb": 9000.0},
    ]
    path.write_text(json.dumps({"devices": devices, "samples": samples}))
    return path


def chosen(held: tuple[str, ...], path: Path | None, **order: Any) -> RunDevices | None:
    return choose_devices_of(make_order(**order), held, script=path, elapsed_s=lambda: 0.0)


def uuids(devices: RunDevices | None, world_size: int) -> dict[int, str] | None:
    if devices is None:
        return None
    return {rank: device.uuid for rank, device in devices.by_rank(range(world_size)).items()}


def test_a_run_on_gpus_has_the_drivers() -> None:
    found = chosen(("GPU-10", "GPU-2"), None, profile="h200")
    assert found is not None
    assert isinstance(found.calls, Nvml)
    assert (found.slots, found.scripted) == (("GPU-10", "GPU-2"), False)


def test_a_gpu_is_but_the_place_of_a_run_of_ours_on_the_cpu() -> None:
    assert chosen(("GPU-0",), None, entry=OURS) is None
    assert query_devices(make_order(entry=OURS), ("GPU-0",), None) is None
    assert chosen(("GPU-0",), None, entry=OURS, profile="h200") is not None
    foreign = [{"entry": "train.py"}, {"entry": None, "command": ["python", "train.py"]}]
    for program in foreign:
        assert chosen(("GPU-0",), None, **program) is not None, "it may compute on that GPU"


def test_a_script_is_honoured_only_where_the_plan_allows_faults(script: Path) -> None:
    held = ("GPU-0",)
    allowed = chosen(held, script, profile="h200", allow_faults=True)
    assert allowed is not None
    assert isinstance(allowed.calls, Scripted)
    real = chosen(held, script, profile="h200", allow_faults=False)
    assert real is not None
    assert isinstance(real.calls, Nvml)
    assert chosen(("cpu:0",), script, allow_faults=False) is None


def test_ranks_get_the_devices_of_their_slots_in_order(script: Path) -> None:
    held = ("GPU-2", "GPU-0")
    found = chosen(held, script, profile="h200", allow_faults=True)
    assert uuids(found, 2) == {0: "GPU-2", 1: "GPU-0"}
    assert uuids(chosen(("cpu:0",), script, allow_faults=True), 2) == {0: "GPU-0", 1: "GPU-1"}


@pytest.mark.parametrize("profile", ["cpu", "h200"])
def test_a_fault_of_devices_brings_its_own(script: Path, profile: str) -> None:
    held = ("cpu:0",) if profile == "cpu" else ("GPU-5", "GPU-6")
    found = chosen(held, script, profile=profile, world_size=2, fault=XID, allow_faults=True)
    assert uuids(found, 2) == {0: "GPU-scripted-0", 1: "GPU-scripted-1"}


def test_the_preflight_sees_what_was_there_before_the_run(script: Path) -> None:
    order = make_order(profile="h200", world_size=3, allow_faults=True)
    look = query_devices(order, ("GPU-0", "GPU-1", "GPU-2"), script)
    assert look is not None
    assert [row.mem_used_mb for row in look.devices] == [0.0, 9000.0, 0.0]
    assert (look.scripted, look.driver) == (True, "scripted")


@pytest.mark.parametrize(
    ("slots", "order", "environ"),
    [
        (("cpu:0",), {}, {}),
        (("GPU-0",), {"profile": "h200"}, {}),
        (("GPU-0",), {"profile": "h200", "entry": OURS}, {}),
        (("GPU-0",), {"entry": OURS}, {}),
        (("GPU-0",), {"entry": OURS, "fault": XID, "allow_faults": True}, {}),
        (("GPU-0",), {"entry": "train.py"}, {}),
        (("GPU-0",), {"entry": None, "command": ["nsa.train"]}, {}),
        (("cpu:0",), {"fault": XID, "allow_faults": True}, {}),
        (("cpu:0",), {"fault": "imbalance:rank=0", "allow_faults": True}, {}),
        (("cpu:0",), {"fault": "hang:rank=1", "allow_faults": True}, {}),
        (("cpu:0",), {"allow_faults": True}, {"GONOGO_DEVICES_SCRIPT": "x"}),
        (("cpu:0",), {"allow_faults": False}, {"GONOGO_DEVICES_SCRIPT": "x"}),
        (("cpu:0",), {"allow_faults": True}, {"GONOGO_DEVICES_SCRIPT": ""}),
    ],
)
def test_the_keeper_starts_a_sampler_exactly_where_there_are_devices(
    script: Path, slots: tuple[str, ...], order: dict[str, Any], environ: dict[str, str]
) -> None:
    path = script if environ.get("GONOGO_DEVICES_SCRIPT") else None
    document = make_order(**order).document()
    assert samples_devices(document, slots, environ) is (chosen(slots, path, **order) is not None)


HOST = [Device(uuid=f"GPU-{mark}", index=n, name="H100") for n, mark in enumerate(("aa1", "ab2"))]
HOST.append(Device(uuid="GPU-c3", index=2, name="A10"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "GPU-c3"]),
        ("", []),
        ("-1", []),
        ("GPU-ab2,GPU-aa1", ["GPU-ab2", "GPU-aa1"]),
        ("GPU-ab", ["GPU-ab2"]),
        ("GPU-a", []),  # of two
        ("MIG-y2", []),
        ("GPU-aa1, GPU-zz, GPU-ab2", ["GPU-aa1"]),  # nothing from the unknown one on
        ("GPU-aa1,GPU-aa1", ["GPU-aa1"]),
        ("NoDevFiles", []),
    ],
)
def test_what_cuda_would_show_is_what_the_worker_has(said: str | None, expected: list[str]) -> None:
    environ = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}
    assert [device.uuid for device in visible_devices(HOST, environ)] == expected


def test_numbers_count_only_where_their_order_is_known() -> None:
    alike = HOST[:2]
    assert visible_devices(alike, {"CUDA_VISIBLE_DEVICES": "1"}) == [alike[1]]
    with pytest.raises(Rejected, match="say UUIDs"):
        visible_devices(HOST, {"CUDA_VISIBLE_DEVICES": "1"})
    ordered = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices(HOST, ordered) == [HOST[1]]
