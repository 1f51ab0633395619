"""Which devices does a run have: real ones, made-up ones, or none?

A fault of devices brings its own script; `GONOGO_DEVICES_SCRIPT` stands for the host's devices
where the plan allows faults, and nowhere else; a run that holds GPUs or slices, or whose profile
owes it some, has the driver's; every other run has none. So has our workload on a profile without
devices: it computes on the CPU, and a GPU that it holds is but its place, sick or busy or not. The
ranks get their devices in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.device import DevicesScript
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import Order
from gonogo.contract.workload import is_ours
from gonogo.device_slots import gpus_of
from gonogo.supervise.devices.made_up import build_fault_script
from gonogo.supervise.devices.nvml import Nvml
from gonogo.supervise.devices.protocol import Device, DeviceCalls
from gonogo.supervise.devices.scripted import Scripted, load_script


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDevices:
    """The devices of one run."""

    calls: DeviceCalls
    slots: tuple[str, ...] | None
    """Which of the host's devices, by UUID, in the order of the ranks; None = all of them."""
    scripted: bool
    of_all_ranks: bool = False
    """They stand for the devices of every rank, on whatever node; else they are this host's."""

    def by_rank(self, ranks: range) -> dict[int, Device]:
        """Return rank → its device; a rank whose device is not there is left out.

        Args:
            ranks: those of this host.

        Raises:
            DeviceUnreadable: nobody says which devices there are.
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
    elapsed_s: Callable[[], float],
    step: Callable[[], int],
) -> RunDevices | None:
    """Return the devices of a run; None when it has none.

    Args:
        order: the run's order.
        held: the slots that it holds, in the order of the ranks.
        script: file of GONOGO_DEVICES_SCRIPT, where that is set.
        elapsed_s: returns the seconds since the run began (`scripted.BEFORE_THE_RUN` before).
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
    """Say whether the run's profile owes it devices."""
    profile = hardware_profiles().get(order.profile)
    return profile is not None and profile.has_devices


def may_use_gpus(order: Order) -> bool:
    """Say whether a run may compute on a GPU that it holds: programs that are not ours may."""
    return has_devices(order) or not is_ours(order.entry, order.command)
