"""What does NVIDIA's management library say? The device calls, through `nvidia-ml-py`.

The library is loaded when it is first asked, so that a host without it (or without a driver) has
no devices instead of a crash. Any call may hang when the driver does: this is used in processes of
its own only (`look`, `sampler`), never in the worker or the watcher.

A GPU that is cut into MIG slices is listed as its slices; what the driver tells of the whole GPU
alone (clock, power, errors) is asked of that. Not covered: several drivers.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gonogo.supervise.devices.protocol import Device, DeviceUnreadable, DeviceUnsupported

MB = 2**20
_MPS_SERVER = "nvidia-cuda-mps"  # "-server" is beyond the 15 characters of the kernel
MOST_EVENTS = 256
"""Events taken in one look at most."""
_NO_INSTANCE = 0xFFFFFFFF
"""Stands for the instance of an event that concerns the whole GPU."""

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


def _name_of(pid: int) -> str:
    """Return what the kernel calls a process; empty where nobody says."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Nvml:
    """The device calls of this host's NVIDIA driver.

    Args:
        load: returns the module `pynvml`; for tests.
        name_of: returns what a process is called; empty where nobody says.
    """

    def __init__(
        self,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        name_of: Callable[[int], str] = _name_of,
    ) -> None:
        self._load, self._name_of = load, name_of
        self._lib: Any = None
        self._events: dict[str, Any] = {}
        self.silent = 0
        """GPUs that the driver counts, and that did not say who they are when last asked."""

    def devices(self) -> list[Device]:
        """Return every device of the host; a GPU that is lost hides no other."""
        found: list[Device] = []
        self.silent, said = 0, None
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                found += self._devices_at(index)
            except DeviceUnreadable as error:
                self.silent, said = self.silent + 1, error
        if said is not None and not found:
            raise said
        return found

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
        return float(
            self._ask_whole("nvmlDeviceGetClockInfo", device, self._named("NVML_CLOCK_SM"))
        )

    def power_w(self, device: Device) -> float:
        """Return the power drawn, in W."""
        return float(self._ask_whole("nvmlDeviceGetPowerUsage", device)) / 1000

    def temp_c(self, device: Device) -> float:
        """Return the temperature, in °C."""
        sensor = self._named("NVML_TEMPERATURE_GPU")
        return float(self._ask_whole("nvmlDeviceGetTemperature", device, sensor))

    def throttle(self, device: Device) -> list[str]:
        """Return the reasons why the clock is held down; empty = none."""
        bits = int(self._ask_whole("nvmlDeviceGetCurrentClocksThrottleReasons", device))
        return [name for bit, name in REASONS.items() if bits & bit]

    def ecc_uncorrected(self, device: Device) -> int:
        """Return the uncorrectable memory errors since the driver was loaded."""
        kind = self._named("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
        return int(
            self._ask_whole(
                "nvmlDeviceGetTotalEccErrors", device, kind, self._named("NVML_VOLATILE_ECC")
            )
        )

    def remap_pending(self, device: Device) -> bool:
        """Say whether a row waits to be remapped, or could not be."""
        _, _, pending, failed = self._ask_whole("nvmlDeviceGetRemappedRows", device)
        return bool(pending or failed)

    def remap_failed(self, device: Device) -> bool:
        """Say whether a row could not be remapped."""
        _, _, _, failed = self._ask_whole("nvmlDeviceGetRemappedRows", device)
        return bool(failed)

    def ecc_on(self, device: Device) -> bool:
        """Say whether its memory corrects and counts its errors."""
        now, _ = self._ask_whole("nvmlDeviceGetEccMode", device)
        return bool(now)

    def nvlink_errors(self, device: Device) -> int:
        """Return the replays, recoveries and checksum errors of all links together."""
        counters = [
            self._named(f"NVML_NVLINK_ERROR_DL_{name}")
            for name in ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")
        ]
        found: list[int] = []
        for link in range(self._named("NVML_NVLINK_MAX_LINKS")):
            try:
                if self._ask_whole("nvmlDeviceGetNvLinkState", device, link):
                    found += [
                        int(
                            self._ask_whole(
                                "nvmlDeviceGetNvLinkErrorCounter", device, link, counter
                            )
                        )
                        for counter in counters
                    ]
            except DeviceUnreadable:
                break  # there are no more links
        if not found:
            raise DeviceUnreadable("no link that counts its errors")
        return sum(found)

    def xids(self, device: Device) -> list[int]:
        """Return the Xid errors since the last call (the first call begins to listen).

        Of a slice those of its own instance, and those that concern the whole GPU: what befell
        another slice is its tenant's.
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

    def processes(self, device: Device) -> list[int]:
        """Return the pids of the processes that compute on it, an MPS server's clients included.

        The server itself computes nothing: it stays as long as somebody wants it.
        """
        computing = {int(row.pid) for row in self._computing(device)}
        clients = {int(row.pid) for row in self._mps_clients(device)}
        return sorted({pid for pid in computing if not self._is_mps_server(pid)} | clients)

    def has_mps(self, device: Device) -> bool:
        """Say whether an MPS server is on it, through which others may share it."""
        return any(self._is_mps_server(int(row.pid)) for row in self._computing(device))

    def _is_mps_server(self, pid: int) -> bool:
        return self._name_of(pid).startswith(_MPS_SERVER)

    def _computing(self, device: Device) -> list[Any]:
        return list(self._ask("nvmlDeviceGetComputeRunningProcesses", device))

    def _mps_clients(self, device: Device) -> list[Any]:
        """Return the clients of an MPS server; a library or device without MPS has none."""
        try:
            return list(self._ask("nvmlDeviceGetMPSComputeRunningProcesses", device))
        except DeviceUnsupported:
            return []

    def _devices_at(self, index: int) -> list[Device]:
        """Return the GPU at a place of the driver's order, or the slices that it is cut into."""
        handle = self._call("nvmlDeviceGetHandleByIndex", index)
        whole = self._device(handle, index)
        try:
            cut, _ = self._call("nvmlDeviceGetMigMode", handle)
        except DeviceUnsupported:
            cut = 0
        if not cut:
            return [whole]
        slices = []
        for place in range(self._call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            try:
                part = self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            except DeviceUnreadable:
                continue  # no slice at this place
            slices.append(self._device(part, index, parent=whole.uuid))
        return slices

    def _device(self, handle: Any, index: int, parent: str | None = None) -> Device:
        try:
            total_mb = self._call("nvmlDeviceGetMemoryInfo", handle).total / MB
        except DeviceUnreadable:
            total_mb = None
        return Device(
            uuid=_text(self._call("nvmlDeviceGetUUID", handle)),
            index=index,
            name=_text(self._call("nvmlDeviceGetName", handle)),
            mem_total_mb=total_mb,
            parent=parent,
        )

    def _listening(self, device: Device) -> Any:
        """Return the set of a device's events, made at the first call."""
        if device.uuid not in self._events:
            events = self._call("nvmlEventSetCreate")
            kind = self._named("nvmlEventTypeXidCriticalError")
            handle = self._call("nvmlDeviceGetHandleByUUID", device.parent or device.uuid)
            self._call("nvmlDeviceRegisterEvents", handle, kind, events)
            self._events[device.uuid] = events
        return self._events[device.uuid]

    def _instance(self, device: Device) -> int | None:
        """Return the GPU instance that a slice is of; None of a whole GPU, or where nobody says."""
        if device.parent is None:
            return None
        try:
            return int(self._ask("nvmlDeviceGetGpuInstanceId", device))
        except DeviceUnreadable:
            return None

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
        return self._call(name, self._call("nvmlDeviceGetHandleByUUID", device.uuid), *more)

    def _ask_whole(self, name: str, device: Device, *more: Any) -> Any:
        """Return the answer about the GPU that a device is, or is a slice of."""
        return self._call(
            name, self._call("nvmlDeviceGetHandleByUUID", device.parent or device.uuid), *more
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the answer of one call of the library."""
        try:
            return getattr(self._library(), name)(*arguments)
        except (self._named("NVMLError_NotSupported"), AttributeError) as error:
            raise DeviceUnsupported(f"{name}: {error}") from error
        except self._named("NVMLError_FunctionNotFound") as error:
            raise DeviceUnsupported(f"{name}: {error}") from error
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
            except lib.NVMLError as error:
                raise DeviceUnreadable(f"nvmlInit: {error}") from error
            except OSError as error:
                raise DeviceUnreadable(f"nvmlInit: {error}") from error
            self._lib = lib
        return self._lib


def _text(said: Any) -> str:
    """Return a text that older bindings give as bytes."""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
