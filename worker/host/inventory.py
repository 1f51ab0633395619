"""Which runs of this home are not finished with? Read from `runs/`, at any moment, by anyone.

A run lives while its keeper does. It is open until `.shipped` says that the control plane has
everything.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.ids import Kind, is_id
from gonogo.files import is_there
from gonogo.rundir import SHIPPED_NAME
from gonogo.supervise.durable import load_json
from gonogo.supervise.given_up import GivenUp, load_given_up
from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.processes import ProcessRef
from worker.host.claim_book import is_foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run directory whose last report has not been acknowledged."""

    run: str
    path: Path
    keeper: ProcessRef | None
    """The living keeper, if any."""
    unseen: OSError | None = None
    """Why it cannot be looked at just now: whose it is, and whether it lives, is not known."""

    @property
    def ended(self) -> bool:
        """Whether exit.json is written."""
        return is_there(self.path / "exit.json")


@dataclass(slots=True)
class Inventory:
    """The runs of one home; remembers which ones were shipped, so that they cost nothing more.

    Those of another machine, with which the home is shared, are not ours to look after.
    """

    runs: Path
    machine: str | None = None
    """This machine; None: whoever's the runs are, they are looked at."""
    has_order: Callable[[str], bool] = lambda run: False
    """Whether it is known what a run was ordered that has no order.json any more."""
    _shipped: set[str] = field(default_factory=set)

    @property
    def told(self) -> Collection[str]:
        """The runs that were seen to be shipped to their end, as of the last look."""
        return self._shipped

    def open_runs(self) -> list[OpenRun]:
        """Return the open runs, oldest id first; one that cannot be looked at just now is open."""
        found = []
        for path in sorted(self._candidates()):
            try:
                run = self._look(path)
            except OSError as error:
                run = OpenRun(run=path.name, path=path, keeper=None, unseen=error)
            if run is not None:
                found.append(run)
        return found

    def reopen(self, run: str) -> bool:
        """Have a run that was shipped to its end shipped again; say whether there is one.

        One that was taken from this worker meanwhile, that somebody gave up, or whose files were
        pruned, stays as it is.

        Raises:
            OSError: the file system refuses just now.
        """
        path = self.runs / run
        if not is_id(run, Kind.RUN):
            return False
        shipped = load_json(path / SHIPPED_NAME)
        if shipped is None or shipped.get("fenced") or self._is_foreign(path):
            return False
        if load_given_up(path) is not None:
            return False
        if not is_there(path / "exit.json"):
            return False
        (path / SHIPPED_NAME).unlink()
        self._shipped.discard(run)
        return True

    def expect(self, run: str) -> None:
        """Look at a run anew that was claimed: it may have been shipped to its end before.

        So it is where a database of then was restored, in which it still waits.
        """
        self._shipped.discard(run)

    def given_up(self, run: str) -> GivenUp | None:
        """Return that, and why, a run of this machine was given up; None where it was not.

        Raises:
            OSError: the file system refuses just now.
        """
        path = self.runs / run
        return load_given_up(path) if is_id(run, Kind.RUN) and not self._is_foreign(path) else None

    def _look(self, path: Path) -> OpenRun | None:
        """Return a run that is open.

        Raises:
            OSError: the file system does not say.
        """
        if is_there(path / SHIPPED_NAME):
            self._shipped.add(path.name)
            return None
        ordered = is_there(path / "order.json") or self.has_order(path.name)
        if not ordered or self._is_foreign(path):
            return None
        return OpenRun(run=path.name, path=path, keeper=living_keeper(path))

    def _is_foreign(self, path: Path) -> bool:
        return self.machine is not None and is_foreign(path, self.machine)

    def _candidates(self) -> list[Path]:
        try:
            names = [path for path in self.runs.iterdir() if path.name not in self._shipped]
        except FileNotFoundError:
            return []
        return [path for path in names if path.name.startswith("run_")]
