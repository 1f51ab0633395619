"""Which devices has this host, which of them are free, and which does a run get?

A device is a slot that one run at a time may hold: `cuda:i`, or `cpu:i` on a host without one. A
GPU profile's run takes one device a rank; on profile `cpu` it takes one slot whatever its ranks.
Whether a slot is free is asked of its lock (`gonogo.supervise.locks`), so that keepers that
outlived an earlier worker, and other workers of the same home, are seen without being asked.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gonogo.contract.errors import Rejected
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import Order
from gonogo.supervise.devices.protocol import DeviceUnreadable
from gonogo.supervise.devices.scripted import load_script
from gonogo.supervise.locks import device_lock, is_locked

_DEVICE = re.compile(r"(cuda|cpu):(\d{1,3})")
_NVIDIA = re.compile(r"nvidia(\d+)")


def list_devices(
    wanted: str | None, dev: Path = Path("/dev"), script: Path | None = None
) -> tuple[str, ...]:
    """Return the worker's devices.

    Args:
        wanted: `cuda:0,cuda:1`; `cpu:N` alone for N slots; None for every GPU, else one CPU slot.
        dev: folder of device nodes.
        script: file of scripted devices, which stand for the host's own.

    Raises:
        Rejected: not such a list, or not such a script.
    """
    if wanted is None and script is not None:
        return _scripted(script)
    if wanted is None:
        found = sorted(
            int(m.group(1)) for name in os.listdir(dev) if (m := _NVIDIA.fullmatch(name))
        )
        return tuple(f"cuda:{index}" for index in found) or ("cpu:0",)
    parts = [part.strip() for part in wanted.split(",")]
    matches = [_DEVICE.fullmatch(part) for part in parts]
    if not all(matches):
        raise Rejected(f"GONOGO_WORKER_DEVICES={wanted}; expected cuda:0,cuda:1 or cpu:N")
    if len(parts) == 1 and (match := matches[0]) and match.group(1) == "cpu":
        return tuple(f"cpu:{index}" for index in range(max(1, int(match.group(2)))))
    return tuple(dict.fromkeys(parts))


def _scripted(script: Path) -> tuple[str, ...]:
    try:
        found = load_script(script).devices
    except DeviceUnreadable as error:
        raise Rejected(str(error)) from error
    return tuple(f"cuda:{device.index}" for device in found) or ("cpu:0",)


def free_devices(home: Path, devices: Iterable[str]) -> tuple[str, ...]:
    """Return the devices that nobody holds just now."""
    return tuple(device for device in devices if not is_locked(device_lock(home, device)))


def choose_devices(order: Order, free: Sequence[str]) -> tuple[str, ...] | None:
    """Return the devices for an order, lowest first, or None when they do not suffice."""
    profile = hardware_profiles().get(order.profile)
    on_gpu = profile is not None and profile.has_devices
    kind, count = ("cuda", order.world_size) if on_gpu else ("", 1)
    fitting = [device for device in free if device.startswith(kind)]
    return tuple(fitting[:count]) if len(fitting) >= count else None
