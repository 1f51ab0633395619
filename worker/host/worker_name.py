"""The name of a worker, and the lock that makes it unique.

A worker holds `GONOGO_HOME/locks/worker{n}.lock` for as long as it lives. Its name consists of the
host, the home and that number, so it is the same after a restart.
"""

import hashlib
import re
from pathlib import Path

from gonogo.supervise.locks import take_lock

MAX_WORKERS = 64


def take_worker_number(home: Path) -> tuple[int, int] | None:
    """Return the lowest free worker number of this home, and the descriptor that keeps it."""
    for number in range(MAX_WORKERS):
        descriptor = take_lock(home / "locks" / f"worker{number}.lock")
        if descriptor is not None:
            return number, descriptor
    return None


def worker_name(home: Path, host: str, machine: str, number: int) -> str:
    """Return the stable name of a worker.

    Args:
        home: GONOGO_HOME.
        host: the host's name.
        machine: the machine's id; containers may share a host name.
        number: which worker of the home it is.
    """
    shown = re.sub(r"[^A-Za-z0-9_.-]", "-", host)[:96]
    place = hashlib.sha256(f"{machine}:{home.resolve()}".encode()).hexdigest()[:6]
    return f"{shown}-{place}" if number == 0 else f"{shown}-{place}-{number}"
