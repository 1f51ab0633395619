"""Choose the devices of a run: real ones, scripted ones, or none. The ranks get them in order.

| run | devices |
|---|---|
| with a fault of devices | those of the fault's own script |
| whose plan allows faults, under `GONOGO_DEVICES_SCRIPT` | those of that script |
| that holds GPUs, or whose profile requires devices | the driver's |
| of our workload on a profile without devices | none: it computes on the CPU |
| any other | none |

The driver is asked from another process, which can be given up when the driver hangs:
`python -m gonogo.supervise.devices.choice` prints the GPUs of this host as JSON; with UUIDs, what
these report.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from gonogo.contract.errors import Rejected
from gonogo.contract.observation import DeviceReadings
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.wire import Recorded
from gonogo.contract.workload import is_ours
from gonogo.device_slots import gpus_of
from gonogo.supervise.devices.device import (
    BEFORE_THE_RUN,
    Device,
    DeviceHealth,
    DeviceUnreadable,
    Scripted,
    build_fault_script,
    load_script,
)
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.processes import own_module

VISIBLE_NAME = "CUDA_VISIBLE_DEVICES"
ORDER_NAME = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDevices:
    """The devices of one run."""

    calls: Nvml | Scripted
    slots: tuple[str, ...] | None
    """UUIDs in the order of the ranks; None = all devices of the host."""
    scripted: bool
    of_all_ranks: bool = False
    """Whether they stand for every rank on whatever node; else they are this host's."""

    def by_rank(self, ranks: range) -> dict[int, Device]:
        """Return rank → its device, for ranks of this host; a missing device is left out."""
        devices = self.calls.devices()
        known = {device.uuid: device for device in devices}
        chosen = devices if self.slots is None else [known.get(uuid) for uuid in self.slots]
        here = chosen[ranks.start :] if self.of_all_ranks else chosen
        pairs = zip(ranks, here, strict=False)
        return {rank: device for rank, device in pairs if device is not None}


def choose_devices_of(
    order: Order,
    held: Sequence[str],
    *,
    script: Path | None,
    elapsed_s: Callable[[], float] = lambda: BEFORE_THE_RUN,
    step: Callable[[], int] = lambda: 0,
) -> RunDevices | None:
    """Return the devices of a run; None when it has none.

    Args:
        held: the slots that it holds, in the order of the ranks.
        script: file of GONOGO_DEVICES_SCRIPT, if that is set.
        elapsed_s: returns the seconds since the run began.

    Raises:
        DeviceUnreadable: the script cannot be read.
    """
    slots = gpus_of(held) if may_use_gpus(order) else ()
    of_fault = build_fault_script(order.fault, order.world_size) if order.fault else None
    if of_fault is not None:
        calls = Scripted(of_fault, elapsed_s, step)
        return RunDevices(calls=calls, slots=None, scripted=True, of_all_ranks=True)
    if script is not None and order.allow_faults:
        calls = Scripted(load_script(script), elapsed_s, step)
        of_slots = slots if has_devices(order) else None
        return RunDevices(calls=calls, slots=of_slots, scripted=True)
    if not slots and not has_devices(order):
        return None
    return RunDevices(calls=Nvml(), slots=slots, scripted=False)


def has_devices(order: Order) -> bool:
    """Whether the run's profile requires devices."""
    profile = hardware_profiles().get(order.profile)
    return profile is not None and profile.has_devices


def may_use_gpus(order: Order) -> bool:
    """Whether a run may compute on a GPU that it holds; programs of users may."""
    return has_devices(order) or not is_ours(order.entry, order.command)


def visible_devices(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """Return the devices that CUDA_VISIBLE_DEVICES names, in its order; all without it.

    As in CUDA, nothing is visible from the first entry on that names no device. A number counts in
    CUDA's order. That is the driver's order if CUDA_DEVICE_ORDER says so, or if all GPUs are alike.

    Raises:
        Rejected: numbers whose meaning is not known.
    """
    named = environ.get(VISIBLE_NAME)
    if named is None:
        return list(devices)
    ordered = environ.get(ORDER_NAME) == "PCI_BUS_ID" or len({row.name for row in devices}) < 2
    found: list[Device] = []
    for name in (part.strip() for part in named.split(",")):
        if name.isdecimal() and not ordered:
            raise Rejected(
                f"{VISIBLE_NAME}={named}: this host has GPUs of several kinds, which CUDA numbers"
                " otherwise than the driver; say UUIDs (nvidia-smi -L), or"
                f" {ORDER_NAME}=PCI_BUS_ID"
            )
        matching = find_devices(devices, name)
        if not matching:
            break
        found += [device for device in matching if device not in found]
    return found


def find_devices(devices: Sequence[Device], name: str) -> list[Device]:
    """Return the device of a name: a UUID, the beginning of one, or a place in the driver's order.

    A beginning of several GPUs names none.
    """
    if name.isdecimal():
        return [device for device in devices if device.index == int(name)]
    begun = [row for row in devices if name.startswith("GPU-") and row.uuid.startswith(name)]
    exact = [row for row in begun if row.uuid == name]
    return exact or (begun if len(begun) == 1 else [])


LIMIT_S = 20.0
_NODES = ("nvidia[0-9]*", "dxg")
_M = TypeVar("_M", bound=BaseModel)


class Listing(Recorded):
    """The GPUs of this host, as its driver lists them."""

    devices: list[Device] = Field(default_factory=list)
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
    devices: list[SeenDevice] = Field(default_factory=list)
    error: str | None = None
    """Why nothing is known."""


def has_nodes(dev: Path = Path("/dev")) -> bool:
    """Whether this host (or container) was given a GPU at all."""
    return any(next(dev.glob(pattern), None) is not None for pattern in _NODES)


def list_host_devices() -> Listing:
    """Return the GPUs of this host, asked in another process for at most LIMIT_S."""
    return _ask_apart(Listing)


def query_devices(order: Order, held: Sequence[str], script: Path | None) -> SeenDevices | None:
    """Return what the devices of a run report; None when it has none."""
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
    calls = devices.calls
    try:
        found = devices.by_rank(range(world_size))
    except DeviceUnreadable as error:
        return SeenDevices(scripted=devices.scripted, error=str(error))
    seen = [
        SeenDevice(
            rank=rank,
            uuid=device.uuid,
            index=device.index,
            name=device.name,
            **calls.read(device).model_dump(),
            **calls.health(device).model_dump(),
        )
        for rank, device in found.items()
    ]
    return SeenDevices(scripted=devices.scripted, driver=calls.driver(), devices=seen)


def _ask_apart(answer: type[_M], *devices: str) -> _M:
    """Return what this module prints in another process, or an answer with an `error`."""
    command = [*own_module("gonogo.supervise.devices.choice"), *devices]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        return answer.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        error = f"the driver did not answer within {LIMIT_S:g} s"
    except (OSError, ValidationError) as reason:
        error = f"the driver could not be asked: {reason}"
    return answer.model_validate({"error": error})


def _ask_here(uuids: Sequence[str]) -> Listing | SeenDevices:
    if uuids:
        devices = RunDevices(calls=Nvml(), slots=tuple(uuids), scripted=False)
        return see_devices(devices, len(uuids))
    try:
        return Listing(devices=Nvml().devices())
    except DeviceUnreadable as error:
        return Listing(error=str(error))


if __name__ == "__main__":
    print(_ask_here(sys.argv[1:]).model_dump_json())
