"""Is what the driver says read in the right units, and what it refuses left unknown?"""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.device import DeviceReadings
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.protocol import Device, DeviceUnreadable, read_device
from tests.supervise.devices.fake_nvml import FakeNvml


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
    assert calls.processes(devices[0]) == [7, 42]
    assert read_device(calls, devices[0]) == DeviceReadings(
        util=97.0,
        mem_used_mb=3072.0,
        mem_total_mb=140 * 1024.0,
        sm_clock_mhz=1980.0,
        power_w=612.5,
        temp_c=61.0,
        throttle=["sw_power_cap", "hw_thermal_slowdown"],
        ecc_uncorrected=2,
        remap_pending=True,
        nvlink_errors=12,
        xids=[],
    )


def test_xids_are_told_once_and_by_device() -> None:
    fake = FakeNvml()
    calls = nvml(fake)
    one, two = calls.devices()
    assert (calls.xids(one), calls.xids(two)) == ([], [])
    fake.xids[1] += [79, 43]
    assert (calls.xids(one), calls.xids(two)) == ([], [79, 43])
    assert calls.xids(two) == []


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "util"),
        ("nvmlDeviceGetMemoryInfo", "mem_used_mb"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetTemperature", "temp_c"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_uncorrected"),
        ("nvmlDeviceGetRemappedRows", "remap_pending"),
        ("nvmlDeviceGetNvLinkState", "nvlink_errors"),
        ("nvmlDeviceGetNvLinkErrorCounter", "nvlink_errors"),
        ("nvmlDeviceRegisterEvents", "xids"),
        ("nvmlEventSetWait_v2", "xids"),
    ],
)
def test_one_call_that_fails_leaves_its_own_reading_unknown(function: str, field: str) -> None:
    calls = nvml(FakeNvml({function}))
    (device, _) = calls.devices()
    found = read_device(calls, device).model_dump()
    unknown = {name for name, value in found.items() if value is None}
    assert unknown - {"mem_total_mb"} == {field}


def test_a_call_that_an_older_library_lacks_is_unknown() -> None:
    fake = FakeNvml()
    calls = nvml(fake)
    (device, _) = calls.devices()

    class Older:
        def __getattr__(self, name: str) -> Any:
            if "Remapped" in name:
                raise AttributeError(name)
            return getattr(fake, name)

    older = nvml(Older())
    assert read_device(older, device).remap_pending is None
    assert read_device(older, device).util == 97.0


@pytest.mark.parametrize("failing", [{"nvmlInit"}, {"nvmlDeviceGetCount"}, {"nvmlDeviceGetUUID"}])
def test_a_driver_that_fails_has_no_devices_and_says_why(failing: set[str]) -> None:
    with pytest.raises(DeviceUnreadable, match="Not Supported"):
        nvml(FakeNvml(failing)).devices()


def test_a_host_without_the_package_has_no_devices() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    with pytest.raises(DeviceUnreadable, match="not installed"):
        Nvml(load=missing).devices()
    gone = Device(uuid="GPU-0", index=0, name="x")
    assert read_device(Nvml(load=missing), gone) == DeviceReadings()


def test_the_real_package_has_every_name_that_is_called() -> None:
    pynvml = pytest.importorskip("pynvml")
    ours = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in ours if not hasattr(pynvml, name)] == []


def test_the_real_package_without_a_driver_is_no_crash() -> None:
    pytest.importorskip("pynvml")
    try:
        devices = Nvml().devices()
    except DeviceUnreadable:
        return
    assert all(device.uuid for device in devices)
