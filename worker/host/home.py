"""What lies in the home of a worker: its runs, the secrets of its claims, its number.

A run lives while its keeper does. It is open until `.shipped` says that the control plane has
everything. `claims/{run}` holds a claim's secret, readable by its owner alone, outside of the run
directory. `runs/{run}/claimed.json` names the machine: on a shared file system only that one may
end the run for want of a keeper. A worker holds `locks/worker{n}.lock` for as long as it lives; its
name consists of host, home and that number, so it is the same after a restart.
"""

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.wire import Kind, is_id
from gonogo.files import is_there, sync_folder
from gonogo.rundir import SHIPPED_NAME, save_json
from gonogo.supervise.durable import load_json
from gonogo.supervise.locks import take_lock
from gonogo.supervise.process_records import living_keeper
from gonogo.supervise.processes import ProcessRef

CLAIMED_NAME = "claimed.json"
MAX_WORKERS = 64


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
        """Return the secret of a run, or None where none is kept."""
        try:
            return (self._folder / run).read_text().strip() or None
        except FileNotFoundError:
            return None


def mark_machine(run_dir: Path, machine: str, boot_id: str) -> None:
    """Write whose a run directory is, before anything else lies in it."""
    save_json(run_dir / CLAIMED_NAME, {"v": 1, "machine_id": machine, "boot_id": boot_id})


def is_of_other_machine(run_dir: Path, machine: str) -> bool:
    """Say whether another machine claimed a run; one without a mark is our own."""
    found = (load_json(run_dir / CLAIMED_NAME) or {}).get("machine_id")
    return isinstance(found, str) and found != machine


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run directory whose last report has not been acknowledged."""

    run: str
    path: Path
    keeper: ProcessRef | None
    """The living keeper, if any."""
    unread: OSError | None = None
    """Why the directory cannot be read now."""

    @property
    def ended(self) -> bool:
        """Whether exit.json is written."""
        return is_there(self.path / "exit.json")


@dataclass(slots=True)
class RunInventory:
    """The runs of one home on this machine; it remembers which ones were shipped."""

    runs: Path
    machine: str | None = None
    """This machine; None: the runs of every machine."""
    _shipped: set[str] = field(default_factory=set)

    def open_runs(self) -> list[OpenRun]:
        """Return the open runs, oldest id first; one that cannot be read now is open."""
        found = []
        for path in sorted(self._candidates()):
            try:
                run = self._load(path)
            except OSError as error:
                run = OpenRun(run=path.name, path=path, keeper=None, unread=error)
            if run is not None:
                found.append(run)
        return found

    def reopen(self, run: str) -> bool:
        """Open a shipped run again; False where it was fenced, given up or pruned."""
        path = self.runs / run
        if not is_id(run, Kind.RUN):
            return False
        shipped = load_json(path / SHIPPED_NAME)
        if shipped is None or shipped.get("fenced") or self._is_foreign(path):
            return False
        if not is_there(path / "exit.json"):
            return False
        (path / SHIPPED_NAME).unlink()
        self._shipped.discard(run)
        return True

    def expect(self, run: str) -> None:
        """Look again at a run that is claimed: after a restore it may have been shipped before."""
        self._shipped.discard(run)

    def _load(self, path: Path) -> OpenRun | None:
        if is_there(path / SHIPPED_NAME):
            self._shipped.add(path.name)
            return None
        if not is_there(path / "order.json") or self._is_foreign(path):
            return None
        return OpenRun(run=path.name, path=path, keeper=living_keeper(path))

    def _is_foreign(self, path: Path) -> bool:
        return self.machine is not None and is_of_other_machine(path, self.machine)

    def _candidates(self) -> list[Path]:
        try:
            names = [path for path in self.runs.iterdir() if path.name not in self._shipped]
        except FileNotFoundError:
            return []
        return [path for path in names if path.name.startswith("run_")]


def take_worker_number(home: Path) -> tuple[int, int] | None:
    """Return the lowest free worker number of this home, and the descriptor that keeps it."""
    for number in range(MAX_WORKERS):
        descriptor = take_lock(home / "locks" / f"worker{number}.lock")
        if descriptor is not None:
            return number, descriptor
    return None


def worker_name(home: Path, host: str, machine: str, number: int) -> str:
    """Return the stable name of a worker; containers may share a host name, not a machine."""
    shown = re.sub(r"[^A-Za-z0-9_.-]", "-", host)[:96]
    place = hashlib.sha256(f"{machine}:{home.resolve()}".encode()).hexdigest()[:6]
    return f"{shown}-{place}" if number == 0 else f"{shown}-{place}-{number}"
