"""Locks of runs and devices by `flock`, which the kernel releases with its holder. Stdlib only.

- `runs/{run}/.keeper.lock`: held by the run's keeper, or by a process that ends a lost run.
- `GONOGO_HOME/locks/launch.lock`: held while a run is claimed, launched or reaped.
- `GONOGO_HOME/locks/cpu:0.lock`: a CPU slot, held by the keeper of its run.
- `{GONOGO_LOCKS}/{uuid}.lock`: a GPU, shared by all homes of the host (default folder
  `/run/lock/gonogo`; the home's own if that cannot be used). It is held until the GPU's memory is
  proven free (`gonogo.supervise.devices.after_run`).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gonogo.device_slots import is_gpu

HOST_FOLDER = Path("/run/lock/gonogo")
_FOR_ALL = 0o1777
_SAFE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""All users share the host's folder: wait for no pipe and follow no link there."""
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO})


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
    """Open a lock file, created if it is missing.

    In a folder of all users the kernel refuses O_CREAT on another user's file
    (fs.protected_regular).
    """
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, flags | _SAFE)
        except FileNotFoundError:
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | _SAFE)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        os.fchmod(descriptor, 0o666)
    return descriptor


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
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
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
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.lstat()  # a link may lead to a folder of ours
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if ours and stat.S_IMODE(found.st_mode) != _FOR_ALL:
            folder.chmod(_FOR_ALL)
    except OSError:
        return None
    return folder if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


def keeper_lock(run_dir: Path) -> Path:
    """Return the lock file of a run's keeper."""
    return run_dir / ".keeper.lock"


def launch_lock(home: Path) -> Path:
    """Return the lock file for claiming, launching and reaping in a home."""
    return home / "locks" / "launch.lock"
