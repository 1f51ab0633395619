"""The secrets of a home's claims, and the machine that each run belongs to.

`GONOGO_HOME/claims/{run}` holds the secret, readable by its owner alone, outside of the run
directory. `runs/{run}/claimed.json` names the machine: on a shared file system only that one may
end the run for want of a keeper.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from gonogo.files import sync_folder
from gonogo.rundir import save_json
from gonogo.supervise.durable import load_json

CLAIMED_NAME = "claimed.json"
KEPT_S = 7 * 86_400.0
"""How long a secret is kept at least after it was used."""
_TOUCH_S = 86_400.0
"""How often the use of a secret is noted."""


class ClaimSecrets:
    """The secrets of one home's claims."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "claims"

    def save(self, run: str, secret: str | None) -> None:
        """Keep the secret of a run; an older claim's is replaced."""
        path = self._folder / run
        if secret is None:
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        spare = path.with_name(f".{run}.tmp")
        descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secret)
            stream.flush()
            os.fsync(stream.fileno())
        spare.replace(path)
        sync_folder(self._folder)  # a power cut must not leave a run whose end nobody may report

    def load(self, run: str) -> str | None:
        """Return the secret of a run, or None where none is kept.

        Raises:
            OSError: it cannot be read now.
        """
        path = self._folder / run
        try:
            secret = path.read_text().strip()
        except FileNotFoundError:
            return None
        with suppress(OSError):
            if abs(time.time() - path.stat().st_mtime) > _TOUCH_S:
                os.utime(path)
        return secret or None

    def forget_gone(self, runs: Path, now: float) -> None:
        """Drop the secrets of runs that have no directory any more and were not used of late.

        Raises:
            OSError: the file system refuses now.
        """
        for path in list(self._folder.iterdir()) if self._folder.is_dir() else []:
            run = path.name.removeprefix(".").partition(".")[0]
            if not (runs / run).exists() and now - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)


def mark_machine(run_dir: Path, machine: str, boot_id: str) -> None:
    """Write whose a run directory is, before anything else lies in it."""
    save_json(run_dir / CLAIMED_NAME, {"v": 1, "machine_id": machine, "boot_id": boot_id})


def is_of_other_machine(run_dir: Path, machine: str) -> bool:
    """Say whether another machine claimed a run; one without a mark is our own.

    Raises:
        OSError: it cannot be read now.
    """
    found = (load_json(run_dir / CLAIMED_NAME) or {}).get("machine_id")
    return isinstance(found, str) and found != machine
