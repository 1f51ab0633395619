"""Choose the devices of a run: real ones, scripted ones, or none. The ranks get them in order.

| run | devices |
|---|---|
| with a fault of devices | those of the fault's own script |
| whose plan allows faults, under `GONOGO_DEVICES_SCRIPT` | those of that script |
| that holds GPUs, or whose profile requires devices | the driver's |
| of our workload on a profile without devices | none: it computes on the CPU |
| any other | none |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.errors import Rejected
from gonogo.contract.observation import DevicesScript
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.workload import is_ours
from gonogo.device_slots import gpus_of
from gonogo.supervise.devices.device import Device, DeviceCalls
from gonogo.supervise.devices.device_script import (
    BEFORE_THE_RUN,
    Scripted,
    build_fault_script,
    load_script,
)
from gonogo.supervise.devices.nvml import Nvml

VISIBLE_NAME = "CUDA_VISIBLE_DEVICES"
ORDER_NAME = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDevices:
    """The devices of one run."""

    calls: DeviceCalls
    slots: tuple[str, ...] | None
    """UUIDs in the order of the ranks; None = all devices of the host."""
    scripted: bool
    of_all_ranks: bool = False
    """Whether they stand for every rank on whatever node; else they are this host's."""

    def by_rank(self, ranks: range) -> dict[int, Device]:
        """Return rank → its device; a rank whose device is missing is left out.

        Args:
            ranks: those of this host.

        Raises:
            DeviceUnreadable: nobody can list the devices.
        """
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
        step: returns the step that the run has reached.

    Raises:
        DeviceUnreadable: the script cannot be read.
    """
    slots = gpus_of(held) if may_use_gpus(order) else ()
    of_fault = _fault_script(order)
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


def _fault_script(order: Order) -> DevicesScript | None:
    return None if order.fault is None else build_fault_script(order.fault, order.world_size)


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

    Args:
        devices: every device of the host, in the driver's order.
        environ: of the worker, or of the process that starts the run.

    Raises:
        Rejected: numbers whose meaning is not known.
    """
    named = environ.get(VISIBLE_NAME)
    if named is None:
        return list(devices)
    found: list[Device] = []
    for name in (part.strip() for part in named.split(",")):
        if name.isdecimal():
            _check_order(devices, environ, named)
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


def _check_order(devices: Sequence[Device], environ: Mapping[str, str], named: str) -> None:
    if environ.get(ORDER_NAME) == "PCI_BUS_ID" or len({device.name for device in devices}) < 2:
        return
    raise Rejected(
        f"{VISIBLE_NAME}={named}: this host has GPUs of several kinds, which CUDA numbers otherwise"
        f" than the driver; say UUIDs (nvidia-smi -L), or {ORDER_NAME}=PCI_BUS_ID"
    )
