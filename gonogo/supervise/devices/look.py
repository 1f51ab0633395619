"""What do a run's devices say before it starts? One look, for the preflight.

`python -m gonogo.supervise.devices.look --held cuda:0 …` with the order on stdin prints it as JSON:
a driver can hang, so it is asked by a process that can be given up.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from gonogo.contract.device import DeviceReadings
from gonogo.contract.order import Order
from gonogo.contract.wire import Recorded
from gonogo.supervise.devices.choice import RunDevices, choose_devices_of
from gonogo.supervise.devices.protocol import Device, DeviceCalls, DeviceUnreadable, read_device
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


class Look(Recorded):
    """What was seen of a run's devices."""

    scripted: bool = False
    driver: str | None = None
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
    return look(devices, order.world_size) if devices.scripted else _look_apart(order, held)


def look(devices: RunDevices, world_size: int) -> Look:
    """Ask every device of a run once; this may hang."""
    try:
        found = devices.by_rank(world_size)
        rows = [_see(devices.calls, rank, device) for rank, device in found.items()]
        return Look(scripted=devices.scripted, driver=_driver(devices.calls), devices=rows)
    except DeviceUnreadable as error:
        return Look(scripted=devices.scripted, error=str(error))


def _devices_of(order: Order, held: Sequence[str], script: Path | None) -> RunDevices | None:
    return choose_devices_of(
        order, held, script=script, elapsed_s=lambda: BEFORE_THE_RUN, step=lambda: 0
    )


def _see(calls: DeviceCalls, rank: int, device: Device) -> DeviceSeen:
    readings = read_device(calls, device).model_dump()
    try:
        pids: list[int] | None = calls.processes(device)
    except DeviceUnreadable:
        pids = None
    return DeviceSeen(
        rank=rank,
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        processes=pids,
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
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gonogo.supervise.devices.look", *slots],
            input=order.model_dump_json().encode(),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Look.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return Look(error=f"the driver did not answer within {LIMIT_S:g} s")
    except (OSError, ValidationError) as error:
        return Look(error=f"nobody could look: {error}")


def main(argv: Sequence[str]) -> int:
    """Print a look at the driver's devices."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.devices.look")
    parser.add_argument("--held", action="append", default=[], metavar="SLOT")
    asked = parser.parse_args(argv)
    order = Order.model_validate_json(sys.stdin.buffer.read())
    devices = _devices_of(order, asked.held, None)
    found = Look() if devices is None else look(devices, order.world_size)
    print(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
