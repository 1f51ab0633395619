"""Seals of small records (size and SHA-256), which ticks hold.

A record is sealed when it is first seen whole. While the run lives, model.json and exit stamps are
sealed again when they change, since a process may restart in place. Any other change is behind the
watcher's back, and the first seal stays. exit.json is sealed by the last tick of all.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from gonogo.contract.tick import FileSeal
from gonogo.files import read_small
from gonogo.rundir import RunDir

EXIT = "exit.json"


class Seals:
    """The seals of one run directory.

    Args:
        known: path → seal that recorded ticks hold; new ones are added to it.
    """

    def __init__(
        self, run_dir: RunDir, world_size: int, known: dict[str, FileSeal], nodes: int = 1
    ) -> None:
        again = [run_dir.model, *(run_dir.rank_exit(rank) for rank in range(world_size))]
        once = [run_dir.order, *(run_dir.preflight_of(node) for node in range(nodes))]
        # exit.json first: records written before it are there by then.
        self._paths = {
            str(path.relative_to(run_dir.path)): path for path in (run_dir.exit, *once, *again)
        }
        self._again = {str(path.relative_to(run_dir.path)) for path in again}
        self._known = known
        self._looked: dict[str, tuple[int, int, int]] = {}

    @property
    def closed(self) -> bool:
        """Whether the end has been sealed."""
        return EXIT in self._known

    def forget(self, names: Iterable[str]) -> None:
        """Seal these again: the tick that held them could not be recorded."""
        for name in names:
            self._known.pop(name, None)
            self._looked.pop(name, None)

    def take(self, *, last: bool) -> dict[str, FileSeal]:
        """Return the new seals, that of exit.json only for the `last` tick."""
        if self.closed:
            return {}
        fresh = {}
        for name, path in self._paths.items():
            if (name in self._known and name not in self._again) or (name == EXIT and not last):
                continue
            seal = self._look(name, path)
            if seal is not None and seal != self._known.get(name):
                fresh[name] = self._known[name] = seal
        return fresh

    def _look(self, name: str, path: Path) -> FileSeal | None:
        """Return the seal of a record that has changed since the last look and is JSON."""
        try:
            stat = os.stat(path)
            signature = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if signature == self._looked.get(name):
                return None
            content = read_small(path)
            json.loads(content)
        except (OSError, ValueError, RecursionError):
            return None
        self._looked[name] = signature
        return FileSeal(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
