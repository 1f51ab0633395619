"""A device, and the questions that a driver (or a script) answers about it."""

from typing import Protocol

from gonogo.contract.observation import DeviceReadings
from gonogo.contract.wire import Recorded


class DeviceUnreadable(Exception):
    """The device, its driver or its library does not answer."""


class Device(Recorded):
    """One device of this host."""

    uuid: str
    index: int
    """Place in the driver's order, for display."""
    name: str
    mem_total_mb: float | None = None


class DeviceHealth(Recorded):
    """What is asked of a device before and after a run; null = unknown."""

    processes: list[int] | None = None
    """Pids of the processes that compute on it."""
    remap_failed: bool | None = None
    """Whether a row could not be remapped."""
    ecc_on: bool | None = None
    """Whether its memory corrects and counts errors."""


class DeviceCalls(Protocol):
    """The questions. Each may block, because a driver can hang. What is not known is null."""

    silent: int
    """GPUs that the driver counts and that did not answer when last asked."""

    def devices(self) -> list[Device]:
        """Return every device of the host.

        Raises:
            DeviceUnreadable: nobody can list them.
        """

    def driver(self) -> str | None:
        """Return the version of the driver."""

    def read(self, device: Device) -> DeviceReadings:
        """Return the readings of one device; its Xids are those since the last call."""

    def health(self, device: Device) -> DeviceHealth:
        """Return what is on a device, and whether its memory is sound."""
