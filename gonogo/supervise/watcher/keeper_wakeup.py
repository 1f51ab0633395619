"""Waking a keeper that was stopped (SIGSTOP, a debugger): until then nobody could end the run.

The watcher looks after node 0's keeper, each follower after its own node's.
"""

import logging
import signal
from pathlib import Path

from gonogo.supervise.keeper_record import living_keeper
from gonogo.supervise.launch.nodes import Place

AWAY_S = 5.0
"""A caller that was not here for so long was suspended itself."""
_log = logging.getLogger("gonogo.supervise.watcher")


class KeeperWakeup:
    """Continues one keeper.

    Args:
        place: the part of the run that it keeps.
        limit_s: how long the keeper may be stopped.
    """

    def __init__(self, run_dir: Path, place: Place, limit_s: float) -> None:
        self._dir, self._place, self._limit_s = run_dir, place, limit_s
        self._stopped_at: float | None = None
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Send SIGCONT to a keeper that has been stopped for its time."""
        away, self._looked = now - self._looked >= AWAY_S, now
        keeper = living_keeper(self._dir, self._place)
        stat = None if keeper is None else keeper.stat()
        if keeper is None or stat is None or stat.state != "T":
            self._stopped_at = None
        elif self._stopped_at is None or away:
            self._stopped_at = now
        elif now - self._stopped_at >= self._limit_s:
            text = "the keeper is stopped: it is continued"
            _log.error(text, extra={"action": "keeper_hangs"})
            keeper.send(signal.SIGCONT)
            self._stopped_at = None
