"""What does NVIDIA's management library say? The device calls, through `nvidia-ml-py`.

The library is loaded when it is first asked, so that a host without it (or without a driver) has
no devices instead of a crash. Any call may hang when the driver does: this is used in processes of
its own only (`look`, `sampler`), never in the worker or the watcher.

Not covered: MIG slices; several drivers.
"""

import importlib
from collections.abc import Callable
from typing import Any

from gonogo.supervise.devices.protocol import Device, DeviceUnreadable

MB = 2**20
MOST_EVENTS = 256
"""Events taken in one look at most."""

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


class Nvml:
    """The device calls of this host's NVIDIA driver.

    Args:
        load: returns the module `pynvml`; for tests.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lib: Any = None
        self._events: dict[str, Any] = {}

    def devices(self) -> list[Device]:
        """Return every device of the host."""
        return [self._device(index) for index in range(self._call("nvmlDeviceGetCount"))]

    def driver(self) -> str:
        """Return the version of the driver."""
        return _text(self._call("nvmlSystemGetDriverVersion"))

    def util(self, device: Device) -> float:
        """Return the share of the last sample period in which a kernel ran, in percent."""
        return float(self._ask("nvmlDeviceGetUtilizationRates", device).gpu)

    def memory_mb(self, device: Device) -> tuple[float, float]:
        """Return memory in use and in all, in MB."""
        found = self._ask("nvmlDeviceGetMemoryInfo", device)
        return found.used / MB, found.total / MB

    def sm_clock_mhz(self, device: Device) -> float:
        """Return the clock of the multiprocessors, in MHz."""
        return float(self._ask("nvmlDeviceGetClockInfo", device, self._named("NVML_CLOCK_SM")))

    def power_w(self, device: Device) -> float:
        """Return the power drawn, in W."""
        return float(self._ask("nvmlDeviceGetPowerUsage", device)) / 1000

    def temp_c(self, device: Device) -> float:
        """Return the temperature, in °C."""
        sensor = self._named("NVML_TEMPERATURE_GPU")
        return float(self._ask("nvmlDeviceGetTemperature", device, sensor))

    def throttle(self, device: Device) -> list[str]:
        """Return the reasons why the clock is held down; empty = none."""
        bits = int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", device))
        return [name for bit, name in REASONS.items() if bits & bit]

    def ecc_uncorrected(self, device: Device) -> int:
        """Return the uncorrectable memory errors since the driver was loaded."""
        kind = self._named("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
        return int(
            self._ask("nvmlDeviceGetTotalEccErrors", device, kind, self._named("NVML_VOLATILE_ECC"))
        )

    def remap_pending(self, device: Device) -> bool:
        """Say whether a row waits to be remapped, or could not be."""
        _, _, pending, failed = self._ask("nvmlDeviceGetRemappedRows", device)
        return bool(pending or failed)

    def nvlink_errors(self, device: Device) -> int:
        """Return the replays, recoveries and checksum errors of all links together."""
        counters = [
            self._named(f"NVML_NVLINK_ERROR_DL_{name}")
            for name in ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")
        ]
        found: list[int] = []
        for link in range(self._named("NVML_NVLINK_MAX_LINKS")):
            try:
                if self._ask("nvmlDeviceGetNvLinkState", device, link):
                    found += [
                        int(self._ask("nvmlDeviceGetNvLinkErrorCounter", device, link, counter))
                        for counter in counters
                    ]
            except DeviceUnreadable:
                break  # there are no more links
        if not found:
            raise DeviceUnreadable("no link that counts its errors")
        return sum(found)

    def xids(self, device: Device) -> list[int]:
        """Return the Xid errors since the last call (the first call begins to listen)."""
        events = self._listening(device)
        found: list[int] = []
        while len(found) < MOST_EVENTS:
            event = self._next_event(events)
            if event is None:
                break
            found.append(int(event.eventData))
        return found

    def processes(self, device: Device) -> list[int]:
        """Return the pids of the processes that compute on it."""
        rows = self._ask("nvmlDeviceGetComputeRunningProcesses", device)
        return sorted(int(row.pid) for row in rows)

    def _device(self, index: int) -> Device:
        handle = self._call("nvmlDeviceGetHandleByIndex", index)
        try:
            total_mb = self._call("nvmlDeviceGetMemoryInfo", handle).total / MB
        except DeviceUnreadable:
            total_mb = None
        return Device(
            uuid=_text(self._call("nvmlDeviceGetUUID", handle)),
            index=index,
            name=_text(self._call("nvmlDeviceGetName", handle)),
            mem_total_mb=total_mb,
        )

    def _listening(self, device: Device) -> Any:
        """Return the set of a device's events, made at the first call."""
        if device.uuid not in self._events:
            events = self._call("nvmlEventSetCreate")
            kind = self._named("nvmlEventTypeXidCriticalError")
            handle = self._call("nvmlDeviceGetHandleByIndex", device.index)
            self._call("nvmlDeviceRegisterEvents", handle, kind, events)
            self._events[device.uuid] = events
        return self._events[device.uuid]

    def _next_event(self, events: Any) -> Any | None:
        """Return the next event without waiting, or None."""
        try:
            return self._library().nvmlEventSetWait_v2(events, 0)
        except self._named("NVMLError_Timeout"):
            return None
        except self._named("NVMLError") as error:
            raise DeviceUnreadable(str(error)) from error

    def _ask(self, name: str, device: Device, *more: Any) -> Any:
        """Return the answer of one call about a device."""
        return self._call(name, self._call("nvmlDeviceGetHandleByIndex", device.index), *more)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the answer of one call of the library."""
        try:
            return getattr(self._library(), name)(*arguments)
        except self._named("NVMLError") as error:
            raise DeviceUnreadable(f"{name}: {error}") from error
        except (AttributeError, UnicodeDecodeError, OSError) as error:
            raise DeviceUnreadable(f"{name}: {error}") from error

    def _named(self, name: str) -> Any:
        """Return a constant or class of the library."""
        try:
            return getattr(self._library(), name)
        except AttributeError as error:
            raise DeviceUnreadable(f"this nvidia-ml-py has no {name}") from error

    def _library(self) -> Any:
        """Return the library, loaded and initialised."""
        if self._lib is None:
            try:
                lib = self._load()
            except ImportError as error:
                raise DeviceUnreadable("nvidia-ml-py is not installed") from error
            try:
                lib.nvmlInit()
            except lib.NVMLError as error:
                raise DeviceUnreadable(f"nvmlInit: {error}") from error
            except OSError as error:
                raise DeviceUnreadable(f"nvmlInit: {error}") from error
            self._lib = lib
        return self._lib


def _text(said: Any) -> str:
    """Return a text that older bindings give as bytes."""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
