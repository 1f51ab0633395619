"""What is a worker called, and who has the name? Asked of `flock`, so never stale.

`GONOGO_HOME/locks/worker{n}.lock` is held by a worker for as long as it lives. Its name is made of
the host, the home and that number. The part that stands for the home is made once and kept in
`locks/`: a home that a link leads to has the same workers, with the same keys; one that was moved
or copied has others, and so has one that is mounted elsewhere.
"""

import hashlib
import logging
import re
import uuid
from contextlib import suppress
from pathlib import Path

from gonogo.files import place_first
from gonogo.supervise.locks import take_lock

MAX_WORKERS = 64
_PART = re.compile(r"[0-9a-f]{6}")
_log = logging.getLogger(__name__)


def take_worker_number(home: Path) -> tuple[int, int] | None:
    """Return the lowest free worker number of this home, and the descriptor that keeps it."""
    for number in range(MAX_WORKERS):
        descriptor = take_lock(home / "locks" / f"worker{number}.lock")
        if descriptor is not None:
            return number, descriptor
    return None


def worker_name(home: Path, host: str, machine: str, number: int) -> str:
    """Return the stable name of a worker: host, home, and its number among the workers there.

    Hosts of one name (containers are called alike) have different machines, so different names.

    Args:
        home: as it was told, an absolute path.
        host: the host's name.
        machine: the machine's id.
        number: which worker of the home it is.
    """
    shown = re.sub(r"[^A-Za-z0-9_.-]", "-", host)[:96]
    name = f"{shown}-{_load_part(home, machine)}"
    return name if number == 0 else f"{name}-{number}"


def _load_part(home: Path, machine: str) -> str:
    """Return what stands for a home on a machine, whichever path leads to it."""
    kept = home / "locks" / f"worker_name.{_hash(machine, home.resolve())}"
    found = _read_part(kept)
    if found is not None:
        return found
    known = (home / "claims").is_dir()  # by its path, before names were kept
    part = _hash(machine, home if known else home.resolve())
    spare = kept.with_name(f".{kept.name}.{uuid.uuid4().hex}")
    try:
        spare.write_text(f"{part}\n")
        if not place_first(spare, kept) and _read_part(kept) is None:
            spare.replace(kept)
    except OSError as error:  # it is made anew at the next start
        _log.warning("the worker's name is not kept: %s", error)
    with suppress(OSError):
        spare.unlink()
    return _read_part(kept) or part


def _read_part(path: Path) -> str | None:
    """Return what a file keeps; None where there is none, or a disk cut it short."""
    try:
        text = path.read_text().strip()
    except (OSError, ValueError):
        return None
    return text if _PART.fullmatch(text) else None


def _hash(machine: str, home: Path) -> str:
    return hashlib.sha256(f"{machine}:{home}".encode()).hexdigest()[:6]
