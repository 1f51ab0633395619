"""Who has a worker's name? Asked of `flock`, so never stale.

`GONOGO_HOME/locks/worker{n}.lock` is held by a worker for as long as it lives.
"""

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
