"""Ask NVIDIA's management library (NVML), through `nvidia-ml-py`.

The library is loaded at the first question, so a host without it has no devices. Any call may hang
with the driver. Only processes of their own use this (`query`, `sampler`, `after_run`).

A GPU that is cut into MIG slices is listed as its slices. Clock, power and errors are those of the
whole GPU. Not covered: several drivers; MPS, whose server looks like another user's process.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gonogo.contract.device import DeviceReadings
from gonogo.supervise.devices.device import Device, DeviceHealth, DeviceUnreadable

MB = 2**20
MOST_EVENTS = 256
"""Xid events taken at once."""
_NO_INSTANCE = 0xFFFFFFFF
"""Instance of an event that concerns the whole GPU."""
_LINK_ERRORS = ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")
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


class _Unsupported(DeviceUnreadable):
    """Devices of this kind, or this version of the library, cannot answer the question."""


class Nvml:
    """The devices of this host's NVIDIA driver.

    Args:
        load: returns the module `pynvml`; for tests.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load = load
        self._lib: Any = None
        self._events: dict[str, Any] = {}
        self.silent = 0
        """GPUs that the driver counts and that did not answer when last asked."""

    def devices(self) -> list[Device]:
        """Return every device of the host; a lost GPU hides no other.

        Raises:
            DeviceUnreadable: the driver does not answer.
        """
        found: list[Device] = []
        self.silent, last = 0, None
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                found += self._devices_at(index)
            except DeviceUnreadable as error:
                self.silent, last = self.silent + 1, error
        if last is not None and not found:
            raise last
        return found

    def driver(self) -> str | None:
        """Return the version of the driver."""
        return _known(lambda: _text(self._call("nvmlSystemGetDriverVersion")))

    def read(self, device: Device) -> DeviceReadings:
        """Return the readings of one device."""
        memory = _known(lambda: self._ask("nvmlDeviceGetMemoryInfo", device.uuid))
        usage = _known(lambda: self._ask("nvmlDeviceGetUtilizationRates", device.uuid))
        power_mw = self._number("nvmlDeviceGetPowerUsage", device)
        counter = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
        errors = self._number("nvmlDeviceGetTotalEccErrors", device, *counter)
        return DeviceReadings(
            util=None if usage is None else float(usage.gpu),
            mem_used_mb=None if memory is None else memory.used / MB,
            mem_total_mb=device.mem_total_mb if memory is None else memory.total / MB,
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", device, "NVML_CLOCK_SM"),
            power_w=None if power_mw is None else power_mw / 1000,
            temp_c=self._number("nvmlDeviceGetTemperature", device, "NVML_TEMPERATURE_GPU"),
            throttle=_known(lambda: self._throttle(device)),
            ecc_uncorrected=None if errors is None else int(errors),
            remap_pending=_known(lambda: any(self._remapped(device))),
            nvlink_errors=_known(lambda: self._link_errors(device)),
            xids=_known(lambda: self._xids(device)),
        )

    def _number(self, name: str, device: Device, *constants: str) -> float | None:
        """Return a number about the GPU that a device is, or is a slice of."""
        return _known(lambda: float(self._ask(name, device.whole, *constants)))

    def health(self, device: Device) -> DeviceHealth:
        """Return what is on a device, and whether its memory is sound."""
        rows = _known(lambda: self._ask("nvmlDeviceGetComputeRunningProcesses", device.uuid))
        return DeviceHealth(
            processes=None if rows is None else sorted({int(row.pid) for row in rows}),
            remap_failed=_known(lambda: self._remapped(device)[1]),
            ecc_on=_known(lambda: bool(self._ask("nvmlDeviceGetEccMode", device.whole)[0])),
        )

    def _throttle(self, device: Device) -> list[str]:
        bits = int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", device.whole))
        return [name for bit, name in REASONS.items() if bits & bit]

    def _remapped(self, device: Device) -> tuple[bool, bool]:
        """Return whether a row waits to be remapped, and whether one could not be."""
        *_, pending, failed = self._ask("nvmlDeviceGetRemappedRows", device.whole)
        return bool(pending), bool(failed)

    def _link_errors(self, device: Device) -> int:
        """Return replays, recoveries and checksum errors of all links together."""
        found: list[int] = []
        counters = [f"NVML_NVLINK_ERROR_DL_{name}" for name in _LINK_ERRORS]
        for link in range(self._named("NVML_NVLINK_MAX_LINKS")):
            try:
                if self._ask("nvmlDeviceGetNvLinkState", device.whole, link):
                    ask = partial(self._ask, "nvmlDeviceGetNvLinkErrorCounter", device.whole, link)
                    found += [int(ask(counter)) for counter in counters]
            except DeviceUnreadable:
                break  # there are no more links
        if not found:
            raise DeviceUnreadable("no link that counts its errors")
        return sum(found)

    def _xids(self, device: Device) -> list[int]:
        """Return the Xids since the last call; the first call begins to listen.

        A slice gets those of its own instance and of the whole GPU.
        """
        events, own = self._listening(device), self._instance(device)
        found: list[int] = []
        for _ in range(MOST_EVENTS):
            event = self._next_event(events)
            if event is None:
                break
            if own is None or getattr(event, "gpuInstanceId", own) in {own, _NO_INSTANCE}:
                found.append(int(event.eventData))
        return found

    def _devices_at(self, index: int) -> list[Device]:
        """Return the GPU at a place of the driver's order, or its slices."""
        handle = self._call("nvmlDeviceGetHandleByIndex", index)
        gpu = self._device(handle, index)
        try:
            cut, _ = self._call("nvmlDeviceGetMigMode", handle)
        except _Unsupported:
            cut = 0
        if not cut:
            return [gpu]
        slices = []
        for place in range(self._call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            try:
                part = self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            except DeviceUnreadable:
                continue  # no slice at this place
            slices.append(self._device(part, index, parent=gpu.uuid))
        return slices

    def _device(self, handle: Any, index: int, parent: str | None = None) -> Device:
        return Device(
            uuid=_text(self._call("nvmlDeviceGetUUID", handle)),
            index=index,
            name=_text(self._call("nvmlDeviceGetName", handle)),
            mem_total_mb=_known(lambda: self._call("nvmlDeviceGetMemoryInfo", handle).total / MB),
            parent=parent,
        )

    def _listening(self, device: Device) -> Any:
        """Return the set of a device's events, created at the first call."""
        if device.uuid not in self._events:
            events = self._call("nvmlEventSetCreate")
            kind = self._named("nvmlEventTypeXidCriticalError")
            handle = self._call("nvmlDeviceGetHandleByUUID", device.whole)
            self._call("nvmlDeviceRegisterEvents", handle, kind, events)
            self._events[device.uuid] = events
        return self._events[device.uuid]

    def _instance(self, device: Device) -> int | None:
        """Return the GPU instance of a slice; None for a whole GPU, or where nobody says."""
        if device.parent is None:
            return None
        return _known(lambda: int(self._ask("nvmlDeviceGetGpuInstanceId", device.uuid)))

    def _next_event(self, events: Any) -> Any | None:
        """Return the next event without waiting, or None."""
        try:
            return self._library().nvmlEventSetWait_v2(events, 0)
        except self._named("NVMLError_Timeout"):
            return None
        except self._named("NVMLError") as error:
            raise DeviceUnreadable(str(error)) from error

    def _ask(self, name: str, uuid: str, *more: Any) -> Any:
        """Ask about a device; texts among the arguments are names of constants."""
        arguments = [self._named(row) if isinstance(row, str) else row for row in more]
        return self._call(name, self._call("nvmlDeviceGetHandleByUUID", uuid), *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the answer of one call of the library."""
        lib = self._library()
        try:
            return getattr(lib, name)(*arguments)
        except (
            self._named("NVMLError_NotSupported"),
            self._named("NVMLError_FunctionNotFound"),
            AttributeError,
        ) as error:
            raise _Unsupported(f"{name}: {error}") from error
        except (self._named("NVMLError"), UnicodeDecodeError, OSError) as error:
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


def _text(found: Any) -> str:
    """Return a text that older bindings give as bytes."""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
