"""What if something else has taken order.json's place? What was ordered is put back. Stdlib only.

A run directory is its trainer's, too. Whoever is started later (a watcher after one that died,
whoever ends a run whose keeper is lost) knows of the run what stands in order.json, so one that is
a pipe, torn, another's or gone would have the run watched and ended by nobody.
"""

import json
import logging
import time
from contextlib import suppress
from pathlib import Path

from gonogo.files import read_small
from gonogo.supervise.durable import save_bytes
from gonogo.supervise.weather import SCARCE

_log = logging.getLogger(__name__)


def put_back(run_dir: Path, ordered: bytes) -> bool:
    """Have order.json say what was ordered; True where it said something else.

    That is kept beside it. A newer claim's order stays: its directory lies where an older one's
    did.

    Args:
        run_dir: the run's directory.
        ordered: the bytes of order.json when the run began.

    Raises:
        OSError: the disk refuses just now.
    """
    path = run_dir / "order.json"
    found = _found(path)
    if found is not None and (found == ordered or _token(found) > _token(ordered)):
        return False
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
    save_bytes(path, ordered)
    _log.error("%s: order.json was not what was ordered: it is put back", run_dir.name)
    return True


def _found(path: Path) -> bytes | None:
    """Return what stands there; None where it is no file that can be read at any later time."""
    try:
        return read_small(path)
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return None


def _token(content: bytes) -> int:
    try:
        token = json.loads(content)["token"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    return token if isinstance(token, int) else -1
