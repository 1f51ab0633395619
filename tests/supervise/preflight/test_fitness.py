"""Does what cannot be read never pass, and what is sick never start?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.records import CheckOutcome
from gonogo.supervise.devices.choice import RunDevices
from gonogo.supervise.devices.look import DeviceSeen, Look, look
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.preflight.fitness import judge_devices
from gonogo.supervise.preflight.peak import judge_peaks
from gonogo.supervise.preflight.smi import complaints
from gonogo.supervise.preflight.store import judge_store, measure_store
from tests.supervise.devices.fake_nvml import FakeNvml, NVMLError_NotSupported, healthy

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL
OWED = ("mem_used_mb", "processes", "throttle", "ecc_on", "ecc_uncorrected", "remap_pending")
FIT: dict[str, Any] = {
    "rank": 0, "uuid": "GPU-0", "index": 0, "name": "H200", "mem_used_mb": 3.0, "processes": [],
    "throttle": [], "ecc_on": True, "ecc_uncorrected": 0, "remap_pending": False,
    "remap_failed": False, "mps": False,
}  # fmt: skip
CALLS = {
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetCount", "nvmlInit", "nvmlDeviceGetUUID",
}  # fmt: skip


def looked(fake: FakeNvml, *held: str) -> Look:
    """What the scripted driver says of a run's devices."""
    calls = Nvml(load=lambda: fake, name_of=lambda _: "python")
    return look(RunDevices(calls=calls, slots=held, scripted=False), len(held))


@given(unknown=st.sets(st.sampled_from(OWED), min_size=1))
def test_what_a_device_does_not_say_never_passes(unknown: set[str]) -> None:
    row = DeviceSeen.model_validate({**FIT, **dict.fromkeys(unknown)})
    found = judge_devices(Look(devices=[row]), ("GPU-0",), 1)
    assert found.outcome is FAIL
    assert list(found.unfit) == ["GPU-0"]
    assert judge_devices(Look(devices=[row]), ("GPU-0",), 0).outcome is WARN


@given(failing=st.sets(st.sampled_from(sorted(CALLS)), min_size=1))
def test_whichever_call_of_the_driver_fails_no_gpu_profile_passes(failing: set[str]) -> None:
    fake = FakeNvml(failing, gpus=[healthy("GPU-0"), healthy("GPU-1")])
    found = judge_devices(looked(fake, "GPU-0", "GPU-1"), ("GPU-0", "GPU-1"), 2)
    assert found.outcome is FAIL


def test_healthy_gpus_pass_and_so_does_a_slice_of_which_little_is_known() -> None:
    gpus = [healthy(f"GPU-{n}") for n in range(8)]
    held = tuple(f"GPU-{n}" for n in range(8))
    assert judge_devices(looked(FakeNvml(gpus=gpus), *held), held, 8).outcome is PASS
    part = {"uuid": "MIG-a", "name": "1g", "used_mb": 5, "total_mb": 9, "pids": [], "mps": []}
    cut = healthy("GPU-0", slices=[part])
    fake = FakeNvml({"nvmlDeviceGetRemappedRows"}, gpus=[cut], error=NVMLError_NotSupported)
    assert judge_devices(looked(fake, "MIG-a"), ("MIG-a",), 1).outcome is PASS


def test_a_gpu_that_fell_off_is_named_and_the_others_go_on() -> None:
    gpus = [healthy("GPU-0"), healthy("GPU-1", lost=True), healthy("GPU-2")]
    held = ("GPU-0", "GPU-1")
    found = judge_devices(looked(FakeNvml(gpus=gpus), *held), held, 2)
    assert found.outcome is FAIL
    assert list(found.unfit) == ["GPU-1"]
    well = judge_devices(looked(FakeNvml(gpus=gpus), "GPU-0"), ("GPU-0",), 1)
    assert (well.outcome, "1 GPUs of this host" in well.text) == (WARN, True)


def smi_log(*gpus: str) -> bytes:
    """The form of `nvidia-smi -q -x`, with what is looked at and some of the rest."""
    return f"<?xml version='1.0'?><nvidia_smi_log>{''.join(gpus)}</nvidia_smi_log>".encode()


def smi_gpu(
    uuid: str,
    *,
    used: str = "3 MiB",
    temp: str = "31 C",
    mode: str = "Default",
    reset: str = "No",
    processes: str = "",
) -> str:
    return (
        f"<gpu id='0'><fan_speed>N/A</fan_speed><uuid>{uuid}</uuid>"
        f"<gpu_reset_status><reset_required>{reset}</reset_required></gpu_reset_status>"
        f"<fb_memory_usage><total>143771 MiB</total><used>{used}</used></fb_memory_usage>"
        f"<compute_mode>{mode}</compute_mode><temperature><gpu_temp>{temp}</gpu_temp>"
        f"</temperature><processes>{processes}</processes></gpu>"
    )


def smi_process(kind: str, name: str) -> str:
    return (
        f"<process_info><pid>77</pid><type>{kind}</type><process_name>{name}</process_name>"
        "</process_info>"
    )


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        (smi_log(smi_gpu("GPU-a")), None),
        (smi_log(smi_gpu("GPU-b"), smi_gpu("GPU-a")), None),
        (smi_log(smi_gpu("GPU-b")), "not in nvidia-smi's list"),
        (smi_log(smi_gpu("GPU-a", temp="[Unknown Error]")), "gpu_temp: [Unknown Error]"),
        (smi_log(smi_gpu("GPU-a", used="[GPU requires reset]")), "requires reset"),
        (smi_log(smi_gpu("GPU-a", used="N/A")), "memory in use: N/A"),
        (smi_log(smi_gpu("GPU-a", reset="Yes")), "a reset is required"),
        (smi_log(smi_gpu("GPU-a", mode="Prohibited")), "Prohibited"),
        (smi_log(smi_gpu("GPU-a", processes=smi_process("M+C", "python"))), "through MPS"),
        (smi_log(smi_gpu("GPU-a", processes=smi_process("C", "python"))), "77 computes"),
        (smi_log(smi_gpu("GPU-a", processes=smi_process("C", "nvidia-cuda-mps-server"))), None),
        (smi_log(smi_gpu("GPU-a", processes=smi_process("G", "Xorg"))), None),
        (b"", "cannot be parsed"),
        (b"Unable to determine the device handle: Unknown Error", "cannot be parsed"),
    ],
)
def test_what_nvidia_smi_says_in_words_is_heard(xml: bytes, said: str | None) -> None:
    found = [text for uuid, text in complaints(xml, ["GPU-a"]) if uuid == "GPU-a"]
    assert (found == []) is (said is None)
    assert said is None or said in found[0]


def test_a_recording_that_is_cut_short_anywhere_is_never_well() -> None:
    whole = smi_log(smi_gpu("GPU-a"))
    for end in random.Random(7).sample(range(len(whole)), 40):
        assert list(complaints(whole[:end], ["GPU-a"]))


@pytest.mark.parametrize(
    ("flops", "profile", "expected", "slow"),
    [
        ((700e12, 690e12), 989e12, PASS, []),
        ((700e12, 600e12), 989e12, FAIL, ["GPU-1"]),  # of the median of the node
        ((700e12, None), 989e12, FAIL, ["GPU-1"]),
        ((400e12, 401e12), 989e12, FAIL, ["GPU-0", "GPU-1"]),
        ((600e12, 601e12), 989e12, WARN, []),
        ((600e12, 601e12), None, PASS, []),
    ],
)
def test_a_gpu_is_held_against_its_profile_and_its_node(
    flops: tuple[float | None, ...],
    profile: float | None,
    expected: CheckOutcome,
    slow: list[str],
) -> None:
    measured = {f"GPU-{n}": value for n, value in enumerate(flops)}
    node = {"GPU-x": 700e12, **{uuid: value for uuid, value in measured.items() if value}}
    if profile is None or (flops[0] or 0) < 650e12:
        del node["GPU-x"]
    (outcome, _), unfit = judge_peaks(measured, node, profile)
    assert (outcome, list(unfit)) == (expected, slow)


def test_the_store_is_measured_and_a_checkpoint_foreseen(tmp_path: Path) -> None:
    assert measure_store(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    assert judge_store(100e6, 0)[0] is PASS
    outcome, text = judge_store(100e6, 1_500_000_000)
    assert (outcome, "takes about 15.0 s" in text) == (PASS, True)
    assert judge_store(1e6, 1_500_000_000)[0] is WARN
    with pytest.raises(OSError):
        measure_store(tmp_path / "missing")
