"""Locks of runs and devices by `flock`, and GPUs in quarantine. Standard library only.

The kernel releases a lock with its holder.

- `runs/{run}/.keeper.lock`: held by the run's keeper, or by a process that ends a lost run.
- `GONOGO_HOME/locks/launch.lock`: held while a run is claimed, launched or reaped.
- `GONOGO_HOME/locks/cpu:0.lock`: a CPU slot, held by the keeper of its run.
- `{GONOGO_LOCKS}/{uuid}.lock`: a GPU, shared by all homes of the host (default folder
  `/run/lock/gonogo`; the home's own if that cannot be used). It is held until the GPU's memory is
  proven free (`gonogo.supervise.devices.after_run`).

A GPU in quarantine has `GONOGO_HOME/quarantine/{uuid}.json`: `{v, device, reason, since, until,
boot_id}`. `until` is in Unix seconds; null means until a reboot. Removing the file ends the
quarantine. An unreadable record counts as a quarantine.
"""

import errno
import fcntl
import json
import logging
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gonogo.device_slots import is_gpu
from gonogo.supervise.durable import save_json
from gonogo.supervise.processes import boot_id

LASTS_S = 600.0
"""How long a quarantine holds that no reboot ends."""
HOST_FOLDER = Path("/run/lock/gonogo")
_SAFE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""All users share the host's folder: wait for no pipe and follow no link there."""

_log = logging.getLogger(__name__)


def take_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock (close it to release), or None if it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _open(path: Path) -> int:
    """Open a lock file, created if it is missing; another user's is only read."""
    mode = 0o666 if path.parent.stat().st_mode & stat.S_IWOTH else 0o600
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, mode)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | _SAFE)


@contextmanager
def holding(path: Path) -> Iterator[bool]:
    """Hold a lock for the body; yields whether it could be taken."""
    descriptor = take_lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether somebody holds the lock; one that may not be opened counts as held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _SAFE)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:  # shared: two callers do not see each other
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLocks:
    """Where the locks of devices lie."""

    home: Path
    shared: Path | None = None
    """The host's lock folder; None if it cannot be used, or no GPU is real."""

    def path(self, slot: str) -> Path:
        """Return the lock file of a slot."""
        if self.shared is None or not is_gpu(slot):
            return self.home / "locks" / f"{slot}.lock"
        return self.shared / f"{slot}.lock"

    def free(self, slots: Iterable[str]) -> tuple[str, ...]:
        """Return the slots that nobody holds now."""
        return tuple(slot for slot in slots if not is_locked(self.path(slot)))


def open_host_folder(folder: Path = HOST_FOLDER) -> Path | None:
    """Return the host's lock folder, created if need be; None if it cannot be used."""
    try:
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    except FileExistsError:
        pass
    except OSError:
        return None
    return folder if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


def keeper_lock(run_dir: Path) -> Path:
    """Return the lock file of a run's keeper."""
    return run_dir / ".keeper.lock"


def launch_lock(home: Path) -> Path:
    """Return the lock file for claiming, launching and reaping in a home."""
    return home / "locks" / "launch.lock"


def quarantine(
    home: Path, device: str, reason: str, *, now: float, until_reboot: bool = False
) -> None:
    """Record that a device is not to be used; `now` in Unix seconds."""
    path, boot = home / "quarantine" / f"{device}.json", boot_id()
    reboots = until_reboot or _load_quarantine(path) == (math.inf, boot)
    until = None if reboots else now + LASTS_S
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"device": device, "reason": reason, "since": now, "until": until, "boot_id": boot}
    save_json(path, {"v": 1, **record})
    _log.error("%s: %s", device, reason, extra={"action": "device_quarantined"})


def without_quarantined(home: Path, slots: Iterable[str], now: float) -> tuple[str, ...]:
    """Return the slots that may be used, in their order."""

    def may_be_used(slot: str) -> bool:
        until, boot = _load_quarantine(home / "quarantine" / f"{slot}.json")
        return now >= until or (until == math.inf and boot not in (None, boot_id()))

    return tuple(filter(may_be_used, slots))


def _load_quarantine(path: Path) -> tuple[float, str | None]:
    """Return until when a record holds (infinite: until a reboot), and the boot of its host."""
    try:
        found = json.loads(path.read_bytes())
        until, boot = found["until"], found.get("boot_id")
        return math.inf if until is None else float(until), None if boot is None else str(boot)
    except FileNotFoundError:
        return -math.inf, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return math.inf, None
