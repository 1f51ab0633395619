"""What do a run's devices say before it starts? One look, for the preflight.

`python -m gonogo.supervise.devices.look --held GPU-… …` with the order on stdin prints it as JSON:
a driver can hang, so it is asked by a process that can be given up.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from gonogo.contract.device import DeviceReadings
from gonogo.contract.order import Order
from gonogo.contract.wire import Recorded
from gonogo.supervise.devices.apart import ask_apart
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.protocol import (
    Device,
    DeviceCalls,
    DeviceUnreadable,
    asked,
    read_device,
)
from gonogo.supervise.devices.scripted import BEFORE_THE_RUN

LIMIT_S = 15.0


class DeviceSeen(DeviceReadings):
    """One device of a run, before it starts."""

    rank: int
    uuid: str
    index: int
    name: str
    processes: list[int] | None = None
    """Who computes on it; null = unknown."""
    remap_failed: bool | None = None
    ecc_on: bool | None = None
    mps: bool | None = None
    """Whether an MPS server is on it."""
    whole: str | None = None
    """UUID of the GPU that this is, or is a slice of."""


class Look(Recorded):
    """What was seen of a run's devices."""

    scripted: bool = False
    driver: str | None = None
    silent: int = 0
    """GPUs of the host that do not say who they are."""
    devices: list[DeviceSeen] = Field(default_factory=list)
    error: str | None = None
    """Why nothing was seen."""


def look_at_devices(order: Order, held: Sequence[str], script: Path | None) -> Look | None:
    """Return what the run's devices say; None when it has none.

    Args:
        order: the run's order.
        held: the slots chosen for it.
        script: file of GONOGO_DEVICES_SCRIPT, where that is set.
    """
    try:
        devices = _devices_of(order, held, script)
    except DeviceUnreadable as error:
        return Look(scripted=True, error=str(error))
    if devices is None:
        return None
    return look(devices, order.ranks_per_node) if devices.scripted else _look_apart(order, held)


def look(devices: RunDevices, world_size: int) -> Look:
    """Ask every device of a run once; this may hang."""
    try:
        found = devices.by_rank(range(world_size))
        rows = [_see(devices.calls, rank, device) for rank, device in found.items()]
        return Look(
            scripted=devices.scripted,
            driver=_driver(devices.calls),
            silent=devices.calls.silent,
            devices=rows,
        )
    except DeviceUnreadable as error:
        return Look(scripted=devices.scripted, error=str(error))


def _devices_of(order: Order, held: Sequence[str], script: Path | None) -> RunDevices | None:
    return choose_devices_of(
        order, held, script=script, elapsed_s=lambda: BEFORE_THE_RUN, step=lambda: 0
    )


def _see(calls: DeviceCalls, rank: int, device: Device) -> DeviceSeen:
    readings = read_device(calls, device).model_dump()
    return DeviceSeen(
        rank=rank,
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        processes=asked(calls.processes, device),
        remap_failed=asked(calls.remap_failed, device),
        ecc_on=asked(calls.ecc_on, device),
        mps=asked(calls.has_mps, device),
        whole=device.parent or device.uuid,
        **readings,
    )


def _driver(calls: DeviceCalls) -> str | None:
    try:
        return calls.driver()
    except DeviceUnreadable:
        return None


def _look_apart(order: Order, held: Sequence[str]) -> Look:
    """Let another process look, for at most LIMIT_S."""
    slots = [part for name in held for part in ("--held", name)]
    said = order.model_dump_json().encode()
    module = "gonogo.supervise.devices.look"
    return ask_apart(Look, module, *slots, limit_s=LIMIT_S, said=said)


def main(argv: Sequence[str]) -> int:
    """Print a look at the driver's devices."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.look")
    parser.add_argument("--held", action="append", default=[], metavar="SLOT")
    asked = parser.parse_args(argv)
    order = Order.model_validate_json(sys.stdin.buffer.read())
    devices = _devices_of(order, asked.held, None)
    found = Look() if devices is None else look(devices, order.ranks_per_node)
    print(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
