"""Which GPUs has this host? Asked of the driver in a process of its own, which can be given up.

`python -m gonogo.supervise.devices.listing` prints `{devices: […], driver, error}` as JSON. A host
without a device node of NVIDIA's is not asked.
"""

import sys
from pathlib import Path

from pydantic import Field

from gonogo.contract.wire import Recorded
from gonogo.supervise.devices.apart import ask_apart
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.protocol import Device, DeviceUnreadable

LIMIT_S = 20.0
_NODES = ("nvidia[0-9]*", "dxg")


class DeviceListed(Recorded):
    """One GPU of the host, or a slice of one."""

    uuid: str
    index: int
    name: str
    mem_total_mb: float | None = None
    parent: str | None = None

    def device(self) -> Device:
        """Return it as the calls want it."""
        return Device(
            uuid=self.uuid,
            index=self.index,
            name=self.name,
            mem_total_mb=self.mem_total_mb,
            parent=self.parent,
        )


class Listing(Recorded):
    """The GPUs of this host, as its driver lists them."""

    devices: list[DeviceListed] = Field(default_factory=list)
    silent: int = 0
    """GPUs that the driver counts, and that do not say who they are."""
    driver: str | None = None
    error: str | None = None
    """Why nobody could say."""


def has_nodes(dev: Path = Path("/dev")) -> bool:
    """Say whether this host (or container) was given a GPU at all."""
    return any(next(dev.glob(pattern), None) is not None for pattern in _NODES)


def list_host_devices() -> Listing:
    """Return the GPUs of this host, asked apart and for at most LIMIT_S."""
    return ask_apart(Listing, "gonogo.supervise.devices.listing", limit_s=LIMIT_S)


def list_devices(calls: Nvml) -> Listing:
    """Ask the driver; this may hang."""
    try:
        found = calls.devices()
        return Listing(
            devices=[
                DeviceListed(
                    uuid=row.uuid,
                    index=row.index,
                    name=row.name,
                    mem_total_mb=row.mem_total_mb,
                    parent=row.parent,
                )
                for row in found
            ],
            silent=calls.silent,
            driver=calls.driver(),
        )
    except DeviceUnreadable as error:
        return Listing(error=str(error))


def main() -> int:
    """Print the listing."""
    print(list_devices(Nvml()).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
