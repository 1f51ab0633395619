"""What can be asked of devices? A dozen calls; each answers, or says that it cannot be read.

The calls are those of NVML, by what they tell and in the units of devices.jsonl. Whoever implements
them raises `DeviceUnreadable` for what it cannot tell: the reading is null then, and null is
unknown, never zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gonogo.contract.device import DeviceReadings


class DeviceUnreadable(Exception):
    """The device, its driver or its library does not say."""


class DeviceUnsupported(DeviceUnreadable):
    """Devices of this kind, or this version of the library, have no such thing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of this host."""

    uuid: str
    index: int
    """Place in the driver's order, for display; a slice has its GPU's."""
    name: str
    mem_total_mb: float | None = None
    parent: str | None = None
    """UUID of the GPU that this is a slice of."""


class DeviceCalls(Protocol):
    """The calls. Each may block (a driver can hang) and may raise `DeviceUnreadable`."""

    silent: int
    """GPUs that the driver counts, and that did not say who they are when last asked."""

    def devices(self) -> list[Device]:
        """Return every device of the host."""

    def driver(self) -> str:
        """Return the version of the driver."""

    def util(self, device: Device) -> float:
        """Return the share of the last sample period in which a kernel ran, in percent."""

    def memory_mb(self, device: Device) -> tuple[float, float]:
        """Return memory in use and in all, in MB."""

    def sm_clock_mhz(self, device: Device) -> float:
        """Return the clock of the multiprocessors, in MHz."""

    def power_w(self, device: Device) -> float:
        """Return the power drawn, in W."""

    def temp_c(self, device: Device) -> float:
        """Return the temperature, in °C."""

    def throttle(self, device: Device) -> list[str]:
        """Return the reasons why the clock is held down; empty = none."""

    def ecc_uncorrected(self, device: Device) -> int:
        """Return the uncorrectable memory errors since the driver was loaded."""

    def remap_pending(self, device: Device) -> bool:
        """Say whether a row waits to be remapped, or could not be."""

    def remap_failed(self, device: Device) -> bool:
        """Say whether a row could not be remapped."""

    def ecc_on(self, device: Device) -> bool:
        """Say whether its memory corrects and counts its errors."""

    def has_mps(self, device: Device) -> bool:
        """Say whether an MPS server is on it, through which others may share it."""

    def nvlink_errors(self, device: Device) -> int:
        """Return the errors of all links together."""

    def xids(self, device: Device) -> list[int]:
        """Return the Xid errors since the last call."""

    def processes(self, device: Device) -> list[int]:
        """Return the pids of the processes that compute on it, an MPS server's clients included."""


def read_device(calls: DeviceCalls, device: Device) -> DeviceReadings:
    """Return all that one device says now; what it does not say is null."""
    memory = asked(calls.memory_mb, device)
    used_mb, total_mb = (None, device.mem_total_mb) if memory is None else memory
    return DeviceReadings(
        util=asked(calls.util, device),
        mem_used_mb=used_mb,
        mem_total_mb=total_mb,
        sm_clock_mhz=asked(calls.sm_clock_mhz, device),
        power_w=asked(calls.power_w, device),
        temp_c=asked(calls.temp_c, device),
        throttle=asked(calls.throttle, device),
        ecc_uncorrected=asked(calls.ecc_uncorrected, device),
        remap_pending=asked(calls.remap_pending, device),
        nvlink_errors=asked(calls.nvlink_errors, device),
        xids=asked(calls.xids, device),
    )


def asked(call: Callable[[Device], Any], device: Device) -> Any:
    """Return the answer of one call, or None."""
    try:
        return call(device)
    except DeviceUnreadable:
        return None
