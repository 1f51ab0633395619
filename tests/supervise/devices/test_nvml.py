"""Is what the driver says read in the right units, and what it refuses left unknown?"""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.device import DeviceReadings
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.protocol import Device, DeviceUnreadable, read_device
from tests.supervise.devices.fake_nvml import FakeNvml, NVMLError_NotSupported, gpu, healthy

SERVER = 1000
"""The pid of an MPS server."""


def nvml(fake: Any) -> Nvml:
    names = {SERVER: "nvidia-cuda-mps"}
    return Nvml(load=lambda: fake, name_of=lambda pid: names.get(pid, "python"))


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


@pytest.mark.parametrize(
    ("remap", "pending"),
    [((3, 2, 0, 0), False), ((0, 0, 1, 0), True), ((0, 0, 0, 1), True)],
    ids=["remapped", "waits", "could not be"],
)
def test_a_row_that_waits_to_be_remapped_or_could_not_be_is_told(
    remap: tuple[int, ...], pending: bool
) -> None:
    calls = nvml(FakeNvml(gpus=[gpu("GPU-0", remap=remap)]))
    assert calls.remap_pending(calls.devices()[0]) is pending


def test_xids_are_told_once_and_by_device() -> None:
    fake = FakeNvml()
    calls = nvml(fake)
    one, two = calls.devices()
    assert (calls.xids(one), calls.xids(two)) == ([], [])
    fake.xids["GPU-1"] += [79, 43]
    assert (calls.xids(one), calls.xids(two)) == ([], [79, 43])
    assert calls.xids(two) == []


def test_xids_of_a_slice_are_its_own_and_those_of_the_whole_gpu() -> None:
    """A neighbour's contained memory error, or illegal access, is not this run's."""
    slices = [
        {"uuid": uuid, "name": "H200 MIG 1g.18gb", "used_mb": 5, "total_mb": 16_384, "lost": False}
        for uuid in ("MIG-a", "MIG-b")
    ]
    fake = FakeNvml(gpus=[healthy("GPU-0", slices=slices)])
    calls = nvml(fake)
    one, _ = calls.devices()
    assert calls.xids(one) == []
    fake.xids["GPU-0"] += [(94, 2), (31, 2), (43, 1), 79]
    assert calls.xids(one) == [43, 79]
    fake.failing.add("nvmlDeviceGetGpuInstanceId")
    fake.xids["GPU-0"] += [(94, 2)]
    assert calls.xids(one) == [94]


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


def test_a_gpu_that_is_cut_is_listed_as_its_slices_and_asked_for_the_rest() -> None:
    part = {"uuid": "MIG-a", "name": "H200 MIG 1g.18gb", "used_mb": 5, "total_mb": 16_384}
    cut = healthy("GPU-0", slices=[{**part, "pids": [9], "mps": []}], throttle=0x80, used_mb=900)
    calls = nvml(FakeNvml(gpus=[cut, healthy("GPU-1")]))
    found, whole = calls.devices()
    assert (found.uuid, found.parent, found.index) == ("MIG-a", "GPU-0", 0)
    assert (whole.uuid, whole.parent) == ("GPU-1", None)
    readings = read_device(calls, found)
    assert (readings.mem_used_mb, readings.throttle) == (5.0, ["hw_power_brake_slowdown"])
    assert (calls.processes(found), readings.util) == ([9], None)


def test_a_lost_gpu_hides_no_other_and_is_counted() -> None:
    calls = nvml(FakeNvml(gpus=[gpu("GPU-0", lost=True), gpu("GPU-1")]))
    assert [row.uuid for row in calls.devices()] == ["GPU-1"]
    assert calls.silent == 1
    gone = Device(uuid="GPU-0", index=0, name="x")
    assert read_device(calls, gone) == DeviceReadings()
    with pytest.raises(DeviceUnreadable, match="lost"):
        nvml(FakeNvml(gpus=[gpu("GPU-0", lost=True)])).devices()


def test_clients_of_an_mps_server_compute_and_the_server_does_not() -> None:
    calls = nvml(FakeNvml(gpus=[gpu("GPU-0", pids=[SERVER], mps=[5]), gpu("GPU-1", pids=[SERVER])]))
    shared, idle = calls.devices()
    assert (calls.processes(shared), calls.has_mps(shared)) == ([5], True)
    assert (calls.processes(idle), calls.has_mps(idle)) == ([], True)


def test_clients_that_cannot_be_asked_for_are_unknown_unless_there_is_no_such_thing() -> None:
    asked = {"nvmlDeviceGetMPSComputeRunningProcesses"}
    device = Device(uuid="GPU-0", index=0, name="x")
    assert nvml(FakeNvml(asked, error=NVMLError_NotSupported)).processes(device) == [7, 42]
    with pytest.raises(DeviceUnreadable):
        nvml(FakeNvml(asked)).processes(device)


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
