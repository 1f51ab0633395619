"""The devices that this worker may give to runs, and the choice for a run.

GPUs by UUID (`gonogo.device_slots`), within what CUDA_VISIBLE_DEVICES and
GONOGO_WORKER_DEVICES allow; `cpu:N` on a host without a GPU. A GPU profile takes one device a rank;
profile `cpu` takes one slot for all ranks. A slot is free when nobody holds its lock
(`gonogo.supervise.locks`) and it is not in quarantine. So keepers of an earlier worker, and other
workers of the host, are respected.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.device_slots import choose_together, gpus_of
from gonogo.supervise.devices.choice import (
    Listing,
    find_devices,
    has_nodes,
    list_host_devices,
    visible_devices,
)
from gonogo.supervise.devices.device import Device, DeviceUnreadable, load_script
from gonogo.supervise.locks import DeviceLocks, open_host_folder, quarantine, without_quarantined

_log = logging.getLogger(__name__)

_CPUS = re.compile(r"cpu:(\d{1,3})")
_NUMBERED = re.compile(r"cuda:(\d{1,3})")
_NONE = ("cpu:0",)
SCHEDULER_SLOTS = 32
"""How many runs a worker hands to a scheduler at once, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The slots of one worker."""

    home: Path
    names: tuple[str, ...]
    locks: DeviceLocks
    shown: Mapping[str, str] = field(default_factory=dict)
    """Slot → what to call it in a log."""

    def free(self, now: float | None = None) -> tuple[str, ...]:
        """Return the fit slots that nobody holds; `now` in Unix seconds."""
        fit = without_quarantined(self.home, self.names, time.time() if now is None else now)
        return self.locks.free(fit)

    def describe(self) -> str:
        """Return a line for the log at the worker's start."""
        said = ", ".join(self.shown.get(name, name) for name in self.names)
        if not gpus_of(self.names):
            return said
        if self.locks.shared is not None:
            return f"{said}; device locks in {self.locks.shared}, for every home of this host"
        return f"{said}; device locks in {self.home / 'locks'}: runs of other homes are not seen"


def quarantine_devices(home: Path, unfit: Mapping[str, str], now: float) -> None:
    """Quarantine unfit devices, so that the next run gets others."""
    for device, reason in unfit.items():
        try:
            quarantine(home, device, reason, now=now)
        except OSError as error:
            _log.error("%s: %s", device, error, extra={"action": "unquarantined"})


def find_slots(
    home: Path,
    *,
    wanted: str | None,
    environ: Mapping[str, str],
    script: Path | None = None,
    locks: Path | None = None,
    dev: Path = Path("/dev"),
) -> Slots:
    """Return the slots that are `wanted`, else those given; Unavailable: the driver is silent."""
    cpus = _cpu_slots(wanted)
    if cpus:
        return Slots(home=home, names=cpus, locks=DeviceLocks(home=home))
    _check_words(wanted)
    if script is not None:
        found, shared = _scripted(script), None
    else:
        found = visible_devices(_of_host(dev, asked=wanted is not None), environ)
        shared = (open_host_folder(locks) if locks else open_host_folder()) if found else None
    if wanted is not None:
        found = _named(wanted, found)
    shown = {row.uuid: f"{row.uuid} (cuda:{row.index}, {row.name})" for row in found}
    return Slots(
        home=home,
        names=tuple(row.uuid for row in found) or _NONE,
        locks=DeviceLocks(home=home, shared=shared),
        shown=shown,
    )


def scheduler_slots(home: Path, wanted: str | None) -> Slots:
    """Return one slot for each run that an engine may have (`cpu:N`), or raise Rejected."""
    names = _cpu_slots(f"cpu:{SCHEDULER_SLOTS}" if wanted is None else wanted)
    if not names:
        raise Rejected(
            f"GONOGO_WORKER_DEVICES={wanted}; expected cpu:N, how many runs its engine may have"
        )
    return Slots(home=home, names=names, locks=DeviceLocks(home=home))


def choose_devices(order: Order, free: Sequence[str]) -> tuple[str, ...] | None:
    """Return the devices for an order, lowest first, or None when there are too few."""
    profile = hardware_profiles().get(order.profile)
    if profile is not None and profile.has_devices:
        return choose_together(free, order.ranks_per_node)
    return tuple(free[:1]) or None


def _cpu_slots(wanted: str | None) -> tuple[str, ...]:
    match = _CPUS.fullmatch((wanted or "").strip())
    return tuple(f"cpu:{index}" for index in range(max(1, int(match[1])))) if match else ()


def _check_words(wanted: str | None) -> None:
    """Refuse what names no device before any driver is asked."""
    for part in () if wanted is None else wanted.split(","):
        if not (_NUMBERED.fullmatch(part.strip()) or part.strip().startswith("GPU-")):
            raise Rejected(
                f"GONOGO_WORKER_DEVICES={wanted}; expected UUIDs (nvidia-smi -L), cuda:0,cuda:1 or"
                " cpu:N"
            )


def _of_host(dev: Path, *, asked: bool) -> list[Device]:
    """Return the host's GPUs; a host without a device node is not asked, unless one is named."""
    if not asked and not has_nodes(dev):
        return []
    listing: Listing = list_host_devices()
    if listing.error is not None:
        raise Unavailable(f"the GPUs of this host cannot be listed: {listing.error}")
    return listing.devices


def _scripted(script: Path) -> list[Device]:
    try:
        rows = load_script(script).devices
    except DeviceUnreadable as error:
        raise Rejected(str(error)) from error
    return [Device(uuid=row.uuid, index=row.index, name=row.name) for row in rows]


def _named(wanted: str, devices: Sequence[Device]) -> list[Device]:
    found: list[Device] = []
    for part in (part.strip() for part in wanted.split(",")):
        number = _NUMBERED.fullmatch(part)
        meant = find_devices(devices, number.group(1) if number else part)
        if not meant:
            here = ", ".join(f"{row.uuid} (cuda:{row.index})" for row in devices) or "none"
            raise Rejected(f"GONOGO_WORKER_DEVICES={wanted}: no {part} here; there are: {here}")
        found += [row for row in meant if row not in found]
    return found
