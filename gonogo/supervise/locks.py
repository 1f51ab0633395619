"""Who has a run, and which device is free? Asked of `flock`; standard library only.

The kernel lets a lock go when its holder is gone, however it died, so nothing here can be stale.

A device's lock is held by a keeper while a process of its run lives, and then until its memory is
proven free (`gonogo.supervise.devices.after_run`). Two homes on one host share the locks of GPUs in
the host's lock folder (`GONOGO_LOCKS`, default `/run/lock/gonogo`), `{uuid}.lock`, which every user
may open; where that cannot be used they lie in the home, as those of CPU slots always do:
`GONOGO_HOME/locks/cpu:0.lock` ·
`locks/launch.lock` held while a run is claimed, launched or reaped: one at a time ·
`runs/{run}/.keeper.lock` held by the run's keeper (or by whoever ends a run whose keeper is lost).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gonogo.device_slots import gpus_of, is_gpu

HOST_FOLDER = Path("/run/lock/gonogo")
_FOR_ALL = 0o1777
_AS_IT_IS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Nothing is waited for, and no link followed: in a folder that all users share anybody may have
put a pipe there, or a link to a lock of our own."""
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO})
"""What another user's file, a link and a socket are answered with."""


def take_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock (close it to let go), or None when another has it.

    Raises:
        OSError: the file can be neither opened nor made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _open(path: Path) -> int:
    """Open a lock file, made if it is not there.

    In a folder that all users share the kernel refuses O_CREAT on another's file
    (fs.protected_regular), so it is made only where there is none. One that is there can be held on
    a file system that takes no writes, and where somebody made a folder of it.
    """
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, flags | _AS_IT_IS)
        except FileNotFoundError:
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR):
                raise
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDONLY | _AS_IT_IS)
    if path.parent.stat().st_mode & stat.S_IWOTH:
        os.fchmod(descriptor, 0o666)
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
    """Say whether somebody holds the lock; one that may not be looked at counts as held.

    It is asked by taking the lock shared for a moment: askers do not see each other, and a keeper,
    which takes it exclusively, tries again for seconds.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _AS_IT_IS)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLocks:
    """Where the locks of devices lie: those of GPUs where every home of the host looks."""

    home: Path
    shared: Path | None = None
    """The host's lock folder; None where it cannot be used, or no GPU is real."""

    def path(self, slot: str) -> Path:
        """Return the lock file of a slot."""
        if self.shared is None or not is_gpu(slot):
            return self.home / "locks" / f"{slot}.lock"
        return self.shared / f"{slot}.lock"

    def free(self, slots: Iterable[str]) -> tuple[str, ...]:
        """Return the slots that nobody holds just now.

        While a keeper of before lives, which holds a GPU by a number (`cuda:N`), no GPU is free:
        nobody can say which one it is.
        """
        free = tuple(slot for slot in slots if not is_locked(self.path(slot)))
        if gpus_of(free) and any(map(is_locked, (self.home / "locks").glob("cuda:*.lock"))):
            return tuple(slot for slot in free if not is_gpu(slot))
        return free


def open_host_folder(folder: Path = HOST_FOLDER) -> Path | None:
    """Return the host's lock folder, made for all users if need be; None where it is no use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.lstat()  # a link may be anybody's, and lead to a folder of ours
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
    """Return the lock file that whoever claims, launches or reaps in this home holds."""
    return home / "locks" / "launch.lock"
