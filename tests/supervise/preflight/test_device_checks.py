"""Devices that are sick, slow or unreadable are not given to a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.records import CheckOutcome
from gonogo.supervise.devices.choice import RunDevices, SeenDevice, SeenDevices, see_devices
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.preflight.host_checks import judge_devices, judge_peaks
from tests.supervise.devices.fake_nvml import FakeNvml, healthy

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL
OWED = ("mem_used_mb", "processes", "throttle", "ecc_on", "ecc_uncorrected", "remap_pending")
FIT: dict[str, Any] = {
    "rank": 0, "uuid": "GPU-0", "index": 0, "name": "H200", "mem_used_mb": 3.0, "processes": [],
    "throttle": [], "ecc_on": True, "ecc_uncorrected": 0, "remap_pending": False,
    "remap_failed": False,
}  # fmt: skip
CALLS = {
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetCount", "nvmlInit", "nvmlDeviceGetUUID",
}  # fmt: skip


def looked(fake: FakeNvml, *held: str) -> SeenDevices:
    """What the scripted driver says of a run's devices."""
    calls = Nvml(load=lambda: fake)
    return see_devices(RunDevices(calls=calls, slots=held, scripted=False), len(held))


@given(unknown=st.sets(st.sampled_from(OWED), min_size=1))
def test_what_a_device_does_not_say_never_passes(unknown: set[str]) -> None:
    row = SeenDevice.model_validate({**FIT, **dict.fromkeys(unknown)})
    found = judge_devices(SeenDevices(devices=[row]), ("GPU-0",), 1)
    assert found.outcome is FAIL
    assert list(found.unfit) == ["GPU-0"]
    assert judge_devices(SeenDevices(devices=[row]), ("GPU-0",), 0).outcome is WARN


@given(failing=st.sets(st.sampled_from(sorted(CALLS)), min_size=1))
def test_whichever_call_of_the_driver_fails_no_gpu_profile_passes(failing: set[str]) -> None:
    fake = FakeNvml(failing, gpus=[healthy("GPU-0"), healthy("GPU-1")])
    found = judge_devices(looked(fake, "GPU-0", "GPU-1"), ("GPU-0", "GPU-1"), 2)
    assert found.outcome is FAIL


def test_healthy_gpus_pass() -> None:
    gpus = [healthy(f"GPU-{n}") for n in range(8)]
    held = tuple(f"GPU-{n}" for n in range(8))
    assert judge_devices(looked(FakeNvml(gpus=gpus), *held), held, 8).outcome is PASS


@pytest.mark.parametrize(
    ("flops", "profile", "expected", "slow"),
    [
        ((700e12, 690e12), 989e12, PASS, []),
        ((700e12, 600e12), 989e12, FAIL, ["GPU-1"]),  # of the median of the node
        ((700e12, None), 989e12, FAIL, ["GPU-1"]),
        ((400e12, 401e12), 989e12, FAIL, ["GPU-0", "GPU-1"]),
        ((600e12, 601e12), 989e12, PASS, []),
        ((600e12, 601e12), None, PASS, []),
    ],
)
def test_a_gpu_is_held_against_its_profile_and_its_node(
    flops: tuple[float | None, ...], profile: float | None, expected: CheckOutcome, slow: list[str]
) -> None:
    measured = {f"GPU-{n}": value for n, value in enumerate(flops)}
    node = {"GPU-x": 700e12, **{uuid: value for uuid, value in measured.items() if value}}
    if profile is None or (flops[0] or 0) < 650e12:
        del node["GPU-x"]
    (outcome, _), unfit = judge_peaks(measured, node, profile)
    assert (outcome, list(unfit)) == (expected, slow)
