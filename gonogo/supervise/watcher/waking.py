"""Does the keeper of a node stand stopped? Then it is told to go on, whatever the run is at.

One that was stopped (SIGSTOP, a debugger) ends nothing and writes no end, also of a program that
has ended by itself, while its lock and its lease say that it lives. The watcher looks after node
0's, each follower after its own node's.
"""

import logging
import signal
from pathlib import Path

from gonogo.supervise.keeper.living import living_keeper
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import ProcessRef

AWAY_S = 5.0
"""Who has not come by for so long was away itself: the keeper gets its time anew."""

_STOPPED = "T"
_log = logging.getLogger("gonogo.supervise.watcher")


class Waking:
    """Looks whether one keeper is stopped.

    Args:
        run_dir: the run's directory.
        place: what is kept.
        limit_s: how long the keeper may be stopped.
    """

    def __init__(self, run_dir: Path, place: Place, limit_s: float) -> None:
        self._dir, self._place, self._limit_s = run_dir, place, limit_s
        self._stopped_at: float | None = None
        """When it was first seen stopped, and not awake since."""
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Tell the keeper to go on where it has stood stopped for its time.

        Args:
            now: monotonic seconds.
        """
        away, self._looked = now - self._looked >= AWAY_S, now
        keeper = living_keeper(self._dir, self._place)
        if keeper is None or state_of(keeper) != _STOPPED:
            self._stopped_at = None
        elif self._stopped_at is None or away:
            self._stopped_at = now
        elif now - self._stopped_at >= self._limit_s:
            text = "the keeper is stopped: it is told to go on"
            _log.error(text, extra={"action": "keeper_hangs"})
            keeper.send(signal.SIGCONT)
            self._stopped_at = None


def state_of(process: ProcessRef) -> str | None:
    """Return the kernel's letter for what a process is at; None where it is gone."""
    stat = process.stat()
    return None if stat is None else stat.state
