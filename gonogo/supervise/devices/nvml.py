"""Ask NVIDIA's management library (NVML), through `nvidia-ml-py`.

The library is loaded at the first question, so a host without it has no devices. Any call may hang
with the driver. Only processes of their own use this (`choice`, `sampler`, `after_run`).

Not covered: several drivers; errors of NVLink other than Xid 74; MIG slices; MPS, whose server
looks like another user's process.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gonogo.contract.observation import DeviceReadings
from gonogo.supervise.devices.device import Device, DeviceHealth, DeviceUnreadable

MB = 2**20
MOST_EVENTS = 256
"""Xid events taken at once."""
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""NVML's bits of why a clock is held down → the names of devices.jsonl."""
_T = TypeVar("_T")


class Nvml:
    """The devices of this host's NVIDIA driver."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lib: Any = None
        self._events: dict[str, Any] = {}

    def devices(self) -> list[Device]:
        """Return every device of the host; a lost GPU hides no other."""
        found: list[Device] = []
        last: DeviceUnreadable | None = None
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                handle = self._call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._call("nvmlDeviceGetUUID", handle)
                name = self._call("nvmlDeviceGetName", handle)
            except DeviceUnreadable as error:
                last = error
                continue
            memory = _known(partial(self._call, "nvmlDeviceGetMemoryInfo", handle))
            total_mb = None if memory is None else memory.total / MB
            found.append(Device(uuid=uuid, index=index, name=name, mem_total_mb=total_mb))
        if last is not None and not found:
            raise last
        return found

    def driver(self) -> str | None:
        """Return the version of the driver."""
        return _known(lambda: str(self._call("nvmlSystemGetDriverVersion")))

    def read(self, device: Device) -> DeviceReadings:
        """Return the readings of one device."""

        def number(name: str, *constants: str) -> float | None:
            return _known(lambda: float(self._ask(name, device, *constants)))

        memory = _known(lambda: self._ask("nvmlDeviceGetMemoryInfo", device))
        usage = _known(lambda: self._ask("nvmlDeviceGetUtilizationRates", device))
        power_mw = number("nvmlDeviceGetPowerUsage")
        counter = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
        errors = number("nvmlDeviceGetTotalEccErrors", *counter)
        return DeviceReadings(
            util=None if usage is None else float(usage.gpu),
            mem_used_mb=None if memory is None else memory.used / MB,
            mem_total_mb=device.mem_total_mb if memory is None else memory.total / MB,
            sm_clock_mhz=number("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
            power_w=None if power_mw is None else power_mw / 1000,
            temp_c=number("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
            throttle=_known(lambda: self._throttle(device)),
            ecc_uncorrected=None if errors is None else int(errors),
            remap_pending=_known(lambda: any(self._remapped(device))),
            xids=_known(lambda: self._xids(device)),
        )

    def health(self, device: Device) -> DeviceHealth:
        """Return what is on a device, and whether its memory is sound."""
        rows = _known(lambda: self._ask("nvmlDeviceGetComputeRunningProcesses", device))
        return DeviceHealth(
            processes=None if rows is None else sorted({int(row.pid) for row in rows}),
            remap_failed=_known(lambda: self._remapped(device)[1]),
            ecc_on=_known(lambda: bool(self._ask("nvmlDeviceGetEccMode", device)[0])),
        )

    def _throttle(self, device: Device) -> list[str]:
        bits = int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", device))
        return [name for bit, name in REASONS.items() if bits & bit]

    def _remapped(self, device: Device) -> tuple[bool, bool]:
        """Return whether a row waits to be remapped, and whether one could not be."""
        *_, pending, failed = self._ask("nvmlDeviceGetRemappedRows", device)
        return bool(pending), bool(failed)

    def _xids(self, device: Device) -> list[int]:
        """Return the Xids since the last call; the first call begins to listen."""
        lib = self._library()
        if device.uuid not in self._events:
            events = self._call("nvmlEventSetCreate")
            kind = "nvmlEventTypeXidCriticalError"
            self._ask("nvmlDeviceRegisterEvents", device, kind, events)
            self._events[device.uuid] = events
        found: list[int] = []
        while len(found) < MOST_EVENTS:
            try:
                event = lib.nvmlEventSetWait_v2(self._events[device.uuid], 0)
            except lib.NVMLError_Timeout:
                break
            except lib.NVMLError as error:
                raise DeviceUnreadable(str(error)) from error
            found.append(int(event.eventData))
        return found

    def _ask(self, name: str, device: Device, *more: Any) -> Any:
        """Ask about a device; texts among the arguments are names of constants."""
        lib = self._library()
        arguments = [getattr(lib, row) if isinstance(row, str) else row for row in more]
        return self._call(name, self._call("nvmlDeviceGetHandleByUUID", device.uuid), *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the answer of one call of the library."""
        lib = self._library()
        try:
            return getattr(lib, name)(*arguments)
        except (lib.NVMLError, AttributeError, UnicodeDecodeError, OSError) as error:
            raise DeviceUnreadable(f"{name}: {error}") from error

    def _library(self) -> Any:
        """Return the library, loaded and initialised."""
        if self._lib is None:
            try:
                lib = self._load()
            except ImportError as error:
                raise DeviceUnreadable("nvidia-ml-py is not installed") from error
            try:
                lib.nvmlInit()
            except (lib.NVMLError, OSError) as error:
                raise DeviceUnreadable(f"nvmlInit: {error}") from error
            self._lib = lib
        return self._lib


def _known(question: Callable[[], _T]) -> _T | None:
    """Return an answer; None where there is none."""
    try:
        return question()
    except DeviceUnreadable:
        return None
