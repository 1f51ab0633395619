"""Which small records has the watcher seen whole? Each by size and SHA-256, for the next tick.

A record that is there and is JSON is sealed when it is first seen. While the run lives, only
what a process that starts anew in place writes again (model.json, its exit record) is sealed
again; any other record that changes, and all that changes once exit.json is sealed, changes behind
the watcher's back, so that its seal stays the first one. A record that cannot be read is not
sealed, and tried again, up to the last tick: what is torn then stays so, and is sealed as it is, so
that it can neither be taken away nor become again what it had been. A record that no tick sealed
counts as added behind the watcher's back, so exit.json, which is written last, is looked at first:
what came before it is there by then. It is sealed by the last tick of all: where that is missing,
the end was not seen.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gonogo.contract.tick import FileSeal
from gonogo.files import MAX_RECORD_BYTES, read_small
from gonogo.rundir import RunDir, file_seal

EXIT = "exit.json"

_Signature = tuple[int, int, int]


class Seals:
    """The seals of one run directory.

    Args:
        run_dir: the run's directory.
        world_size: number of ranks.
        known: path → seal that recorded ticks hold already.
        nodes: on how many nodes it is.
    """

    def __init__(
        self, run_dir: RunDir, world_size: int, known: Mapping[str, FileSeal], nodes: int = 1
    ) -> None:
        paths = [
            run_dir.exit,
            run_dir.order,
            *(run_dir.preflight_of(node) for node in range(nodes)),
            run_dir.model,
            *(run_dir.rank_exit(rank) for rank in range(world_size)),
        ]
        self._paths = {str(path.relative_to(run_dir.path)): path for path in paths}
        self._again = {
            str(path.relative_to(run_dir.path))
            for path in (run_dir.model, *(run_dir.rank_exit(rank) for rank in range(world_size)))
        }
        self._known = dict(known)
        self._looked: dict[str, _Signature] = {}

    @property
    def closed(self) -> bool:
        """Whether the end has been sealed."""
        return EXIT in self._known

    @property
    def known(self) -> dict[str, FileSeal]:
        """Path → seal that ticks hold."""
        return dict(self._known)

    def forget(self, names: Iterable[str]) -> None:
        """Seal these again: the tick that held them could not be recorded."""
        for name in names:
            self._known.pop(name, None)
            self._looked.pop(name, None)

    def take(self, *, last: bool) -> dict[str, FileSeal]:
        """Return the seals that no tick holds yet, that of exit.json only for the `last` tick."""
        if self.closed:
            return {}
        fresh = {}
        for name, path in self._paths.items():
            if (name in self._known and name not in self._again) or (name == EXIT and not last):
                continue
            seal = self._look(name, path)
            if seal is None and last and name != EXIT:
                seal = _as_it_is(path)
            if seal is not None and seal != self._known.get(name):
                fresh[name] = self._known[name] = seal
        return fresh

    def _look(self, name: str, path: Path) -> FileSeal | None:
        """Return the seal of a record whose file is not the one looked at before."""
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


def _as_it_is(path: Path) -> FileSeal | None:
    """Return the seal of a file, whatever stands in it; None where there is none to be read.

    Nor of one too large for a record: to read it takes longer than anybody waits for the end.
    """
    try:
        return None if path.stat().st_size > MAX_RECORD_BYTES else file_seal(path)
    except OSError:
        return None
