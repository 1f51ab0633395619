"""Which runs did this home claim, with what secret, and what was ordered?

`GONOGO_HOME/claims/{run}` holds the secret, readable by its owner alone, outside of the run
directory, which trainers and viewers read. `claims/{run}.order.json` holds the order beside it: a
trainer may make anything of the one in its directory. `runs/{run}/claimed.json` says whose the
directory is: on a shared file system only the machine that claimed a run may end it for want of a
keeper.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.files import is_there, sync_folder
from gonogo.rundir import save_json
from gonogo.supervise.durable import load_json

CLAIMED_NAME = "claimed.json"
KEPT_S = 7 * 86_400.0
"""How long a secret is kept at least after it was used."""
_ORDER = ".order.json"
_NOTED_S = 86_400.0
"""How often it is noted that a secret is used."""


class ClaimBook:
    """The secrets of one home's claims."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "claims"

    def save(self, run: str, secret: str | None) -> None:
        """Keep the secret of a run; an older claim's is replaced."""
        path = self._folder / run
        if secret is None:  # a control plane of before gives none
            path.unlink(missing_ok=True)
            return
        self._make_folder()
        spare = path.with_name(f".{run}.tmp")
        descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secret)
            stream.flush()
            os.fsync(stream.fileno())
        spare.replace(path)
        sync_folder(self._folder)  # or a power cut leaves a run whose end nobody may tell

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save_order(self, run: str, document: Mapping[str, Any]) -> None:
        """Keep what was ordered, as `order.json` holds it; an older claim's is replaced."""
        self._make_folder()
        save_json(self._folder / f"{run}{_ORDER}", document)

    def load_order(self, run: str) -> bytes | None:
        """Return the bytes of what was ordered, or None where that is not kept.

        Raises:
            OSError: it cannot be read just now.
        """
        try:
            return (self._folder / f"{run}{_ORDER}").read_bytes()
        except FileNotFoundError:
            return None

    def has_order(self, run: str) -> bool:
        """Say whether it is kept what was ordered.

        Raises:
            OSError: nobody can say just now.
        """
        return is_there(self._folder / f"{run}{_ORDER}")

    def load(self, run: str) -> str | None:
        """Return the secret of a run, or None where none is kept.

        Raises:
            OSError: it cannot be read just now.
        """
        path = self._folder / run
        try:
            secret = path.read_text().strip()
        except FileNotFoundError:
            return None
        with suppress(OSError):  # a disk that takes no note keeps no message back
            if abs(time.time() - path.stat().st_mtime) > _NOTED_S:
                os.utime(path)
        return secret or None

    def forget_gone(self, runs: Path, now: float) -> None:
        """Drop what is kept of runs that have no directory any more and that nobody used of late.

        Those of others may be asked for again, by a control plane whose database was restored;
        those in use, where `runs` is mounted later than the worker starts, however long they run.

        Raises:
            OSError: the file system refuses just now.
        """
        kept = list(self._folder.iterdir()) if self._folder.is_dir() else []
        for path in kept:
            run = path.name.removeprefix(".").partition(".")[0]
            if not (runs / run).exists() and now - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)


def mark_claimed(run_dir: Path, machine: str, boot_id: str) -> None:
    """Say whose a run directory is, before anything else stands in it."""
    save_json(run_dir / CLAIMED_NAME, {"v": 1, "machine_id": machine, "boot_id": boot_id})


def is_foreign(run_dir: Path, machine: str) -> bool:
    """Say whether another machine claimed a run; one that nobody marked is our own.

    Raises:
        OSError: nobody can say just now.
    """
    said = (load_json(run_dir / CLAIMED_NAME) or {}).get("machine_id")
    return isinstance(said, str) and said != machine
