"""Who has a run, and which device is free? Asked of `flock`; standard library only.

The kernel lets a lock go when its holder is gone, however it died, so nothing here can be stale.

`GONOGO_HOME/locks/{device}.lock` held by a keeper while a process of its run lives ·
`locks/launch.lock` held while a run is claimed, launched or reaped: one at a time ·
`runs/{run}/.keeper.lock` held by the run's keeper (or by whoever ends a run whose keeper is lost).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def take_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock (close it to let go), or None when another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def holding(path: Path) -> Iterator[bool]:
    """Hold a lock for the body; yields whether it could be had."""
    descriptor = take_lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Say whether somebody holds the lock.

    It is asked by taking the lock shared for a moment: askers do not see each other, and a keeper,
    which takes it exclusively, tries again for seconds.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def device_lock(home: Path, device: str) -> Path:
    """Return the lock file of a device, such as `cuda:0`."""
    return home / "locks" / f"{device}.lock"


def keeper_lock(run_dir: Path) -> Path:
    """Return the lock file of a run's keeper."""
    return run_dir / ".keeper.lock"


def launch_lock(home: Path) -> Path:
    """Return the lock file that whoever claims, launches or reaps in this home holds."""
    return home / "locks" / "launch.lock"
