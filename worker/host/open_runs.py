"""The runs of a home that are not finished, read from `runs/` at any moment by anyone.

A run lives while its keeper does. It is open until `.shipped` says that the control plane has
everything.
"""

from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.ids import Kind, is_id
from gonogo.files import is_there
from gonogo.rundir import SHIPPED_NAME
from gonogo.supervise.durable import load_json
from gonogo.supervise.keeper_record import living_keeper
from gonogo.supervise.processes import ProcessRef
from worker.host.claim_secrets import is_of_other_machine


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
        """Open a shipped run again; False where it was fenced, given up or pruned.

        Raises:
            OSError: the file system refuses now.
        """
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
