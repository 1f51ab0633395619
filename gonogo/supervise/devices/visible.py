"""Which of the host's devices was this process given? CUDA_VISIBLE_DEVICES, as CUDA reads it.

A scheduler gives a worker its GPUs by that name: as UUIDs or beginnings of them, or as numbers. A
number counts in CUDA's order, which is the driver's only where CUDA_DEVICE_ORDER says so or all the
GPUs are of one kind; where neither holds nobody can say which is meant, and it is refused.
"""

from collections.abc import Mapping, Sequence

from gonogo.contract.errors import Rejected
from gonogo.supervise.devices.protocol import Device

VISIBLE_NAME = "CUDA_VISIBLE_DEVICES"
ORDER_NAME = "CUDA_DEVICE_ORDER"


def visible_devices(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """Return the devices that an environment lets a program use, in the order it names them.

    As in CUDA, nothing is visible from the first entry on that names no device.

    Args:
        devices: every device of the host, in the driver's order.
        environ: of the worker, or of whoever starts the run.

    Raises:
        Rejected: numbers whose meaning is not known.
    """
    said = environ.get(VISIBLE_NAME)
    if said is None:
        return list(devices)
    found: list[Device] = []
    for name in (part.strip() for part in said.split(",")):
        if name.isdecimal():
            _check_order(devices, environ, said)
        matching = find_devices(devices, name)
        if not matching:
            break
        found += [device for device in matching if device not in found]
    return found


def find_devices(devices: Sequence[Device], name: str) -> list[Device]:
    """Return what a name means: a UUID, the beginning of one, or a place in the driver's order.

    A GPU that is cut into slices stands for all of them; a beginning of several GPUs for none.
    """
    if name.isdecimal():
        return [device for device in devices if device.index == int(name)]
    if not name.startswith(("GPU-", "MIG-")):
        return []
    exact = [device for device in devices if name in (device.uuid, device.parent)]
    if exact:
        return exact
    begun = [device for device in devices if _is_begun(device, name)]
    whole = {device.parent or device.uuid for device in begun}
    return begun if len(whole) == 1 else []


def _is_begun(device: Device, name: str) -> bool:
    return device.uuid.startswith(name) or (device.parent or "").startswith(name)


def _check_order(devices: Sequence[Device], environ: Mapping[str, str], said: str) -> None:
    if environ.get(ORDER_NAME) == "PCI_BUS_ID" or len({device.name for device in devices}) < 2:
        return
    raise Rejected(
        f"{VISIBLE_NAME}={said}: this host has GPUs of several kinds, which CUDA numbers otherwise"
        f" than the driver; say UUIDs (nvidia-smi -L), or {ORDER_NAME}=PCI_BUS_ID"
    )
