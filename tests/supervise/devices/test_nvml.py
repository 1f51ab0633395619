"""Readings of the driver have the right units; what it refuses is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.observation import DeviceReadings
from gonogo.supervise.devices.device import Device, DeviceHealth, DeviceUnreadable
from gonogo.supervise.devices.nvml import Nvml
from tests.supervise.devices.fake_nvml import FakeNvml, gpu


def nvml(fake: Any) -> Nvml:
    return Nvml(load=lambda: fake)


def test_every_reading_is_taken_in_its_unit() -> None:
    calls = nvml(FakeNvml())
    devices = calls.devices()
    assert [(row.uuid, row.index, row.name) for row in devices] == [
        ("GPU-0", 0, "NVIDIA H200"),
        ("GPU-1", 1, "NVIDIA H200"),
    ]
    assert devices[0].mem_total_mb == 140 * 1024
    assert calls.driver() == "570.86.15"
    assert calls.health(devices[0]) == DeviceHealth(
        processes=[7, 42], remap_failed=False, ecc_on=True
    )
    assert calls.read(devices[0]) == DeviceReadings(
        util=97.0,
        mem_used_mb=3072.0,
        mem_total_mb=140 * 1024.0,
        sm_clock_mhz=1980.0,
        power_w=612.5,
        temp_c=61.0,
        throttle=["sw_power_cap", "hw_thermal_slowdown"],
        ecc_uncorrected=2,
        remap_pending=True,
        xids=[],
    )


def test_xids_are_told_once_and_by_device() -> None:
    fake = FakeNvml()
    calls = nvml(fake)
    one, two = calls.devices()
    assert (calls.read(one).xids, calls.read(two).xids) == ([], [])
    fake.xids["GPU-1"] += [79, 43]
    assert (calls.read(one).xids, calls.read(two).xids) == ([], [79, 43])
    assert calls.read(two).xids == []


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "util"), ("nvmlDeviceGetMemoryInfo", "mem_used_mb"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"), ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetTemperature", "temp_c"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_uncorrected"),
        ("nvmlDeviceGetRemappedRows", "remap_pending"), ("nvmlDeviceRegisterEvents", "xids"),
        ("nvmlEventSetWait_v2", "xids"),
    ],
)  # fmt: skip
def test_one_call_that_fails_leaves_its_own_reading_unknown(function: str, field: str) -> None:
    calls = nvml(FakeNvml({function}))
    (device, _) = calls.devices()
    found = calls.read(device).model_dump()
    unknown = {name for name, value in found.items() if value is None}
    assert unknown - {"mem_total_mb", "nvlink_errors"} == {field}


@pytest.mark.parametrize("failing", [{"nvmlInit"}, {"nvmlDeviceGetCount"}, {"nvmlDeviceGetUUID"}])
def test_a_driver_that_fails_has_no_devices_and_says_why(failing: set[str]) -> None:
    with pytest.raises(DeviceUnreadable, match="Not Supported"):
        nvml(FakeNvml(failing)).devices()


def test_a_lost_gpu_hides_no_other() -> None:
    calls = nvml(FakeNvml(gpus=[gpu("GPU-0", lost=True), gpu("GPU-1")]))
    assert [row.uuid for row in calls.devices()] == ["GPU-1"]
    gone = Device(uuid="GPU-0", index=0, name="x")
    assert calls.read(gone) == DeviceReadings()
    with pytest.raises(DeviceUnreadable, match="lost"):
        nvml(FakeNvml(gpus=[gpu("GPU-0", lost=True)])).devices()


def test_a_host_without_the_package_has_no_devices() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    with pytest.raises(DeviceUnreadable, match="not installed"):
        Nvml(load=missing).devices()
    gone = Device(uuid="GPU-0", index=0, name="x")
    assert Nvml(load=missing).read(gone) == DeviceReadings()


def test_the_real_package_has_every_name_that_is_called() -> None:
    pynvml = pytest.importorskip("pynvml")
    ours = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in ours if not hasattr(pynvml, name)] == []
