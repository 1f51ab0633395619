"""Ask the driver from another process, which can be given up when the driver hangs.

`python -m gonogo.supervise.devices.query` prints the GPUs of this host as JSON; with UUIDs,
what these report.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from gonogo.contract.observation import DeviceReadings
from gonogo.contract.order import Order
from gonogo.contract.wire import Recorded
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.device import Device, DeviceCalls, DeviceHealth, DeviceUnreadable
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.processes import own_module

LIMIT_S = 20.0
_NODES = ("nvidia[0-9]*", "dxg")
_M = TypeVar("_M", bound=BaseModel)


class Listing(Recorded):
    """The GPUs of this host, as its driver lists them."""

    devices: list[Device] = Field(default_factory=list)
    silent: int = 0
    """GPUs that the driver counts and that do not answer."""
    driver: str | None = None
    error: str | None = None
    """Why nothing is known."""


class SeenDevice(DeviceReadings, DeviceHealth):
    """One device of a run, before it starts."""

    rank: int
    uuid: str
    index: int
    name: str


class SeenDevices(Recorded):
    """What the devices of a run report before it starts."""

    scripted: bool = False
    driver: str | None = None
    silent: int = 0
    """GPUs of the host that do not answer."""
    devices: list[SeenDevice] = Field(default_factory=list)
    error: str | None = None
    """Why nothing is known."""


def has_nodes(dev: Path = Path("/dev")) -> bool:
    """Whether this host (or container) was given a GPU at all."""
    return any(next(dev.glob(pattern), None) is not None for pattern in _NODES)


def list_host_devices() -> Listing:
    """Return the GPUs of this host, asked in another process for at most LIMIT_S."""
    return _ask_apart(Listing)


def list_devices(calls: Nvml) -> Listing:
    """Ask the driver; this may hang."""
    try:
        devices = calls.devices()
        return Listing(devices=devices, silent=calls.silent, driver=calls.driver())
    except DeviceUnreadable as error:
        return Listing(error=str(error))


def query_devices(order: Order, held: Sequence[str], script: Path | None) -> SeenDevices | None:
    """Return what the devices of a run report; None when it has none.

    Args:
        held: the slots chosen for it.
        script: file of GONOGO_DEVICES_SCRIPT, if that is set.
    """
    try:
        devices = choose_devices_of(order, held, script=script)
    except DeviceUnreadable as error:
        return SeenDevices(scripted=True, error=str(error))
    if devices is None:
        return None
    if devices.scripted:
        return see_devices(devices, order.ranks_per_node)
    return _ask_apart(SeenDevices, *devices.slots) if devices.slots else SeenDevices()


def see_devices(devices: RunDevices, world_size: int) -> SeenDevices:
    """Ask every device of a run once; this may hang."""
    try:
        found = devices.by_rank(range(world_size))
    except DeviceUnreadable as error:
        return SeenDevices(scripted=devices.scripted, error=str(error))
    return SeenDevices(
        scripted=devices.scripted,
        driver=devices.calls.driver(),
        silent=devices.calls.silent,
        devices=[_see(devices.calls, rank, device) for rank, device in found.items()],
    )


def _see(calls: DeviceCalls, rank: int, device: Device) -> SeenDevice:
    return SeenDevice(
        rank=rank,
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        **calls.read(device).model_dump(),
        **calls.health(device).model_dump(),
    )


def _ask_apart(answer: type[_M], *devices: str) -> _M:
    """Return what this module prints in another process, or an answer with an `error`."""
    command = [*own_module("gonogo.supervise.devices.query"), *devices]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        return answer.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        error = f"the driver did not answer within {LIMIT_S:g} s"
    except (OSError, ValidationError) as reason:
        error = f"the driver could not be asked: {reason}"
    return answer.model_validate({"error": error})


def main(argv: Sequence[str]) -> int:
    """Print what the driver answers."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.query")
    parser.add_argument("devices", nargs="*", metavar="UUID")
    asked = tuple(parser.parse_args(argv).devices)
    found: Listing | SeenDevices = list_devices(Nvml())
    if asked:
        devices = RunDevices(calls=Nvml(), slots=asked, scripted=False)
        found = see_devices(devices, len(asked))
    print(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
