"""Did the disk take what a rank said last? A small write now and then tells; stdlib only.

A rank that leaves waits LAST_S for a disk to take its last words. Where the disk takes writes again
a moment later, nothing else tells that it refused them: how the rank ended is written at once.
"""

import time
from pathlib import Path

from gonogo.supervise.weather import takes_a_write
from gonogo.trainer.line_file import LAST_S

TRY_EVERY_S = LAST_S / 2
"""So that a disk which takes nothing for as long as last words wait is tried meanwhile."""


class Refusals:
    """When the disk last refused a small write, and since when it had.

    Args:
        path: of the file that is written, and removed again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._due = path, float("-inf")
        self._from, self._until = float("inf"), float("-inf")
        self._took = True

    def tend(self, now: float) -> None:
        """Try, when it is time.

        Args:
            now: monotonic seconds.
        """
        if now < self._due:
            return
        takes, at = takes_a_write(self._path), time.time()
        if not takes:
            if self._took:
                self._from = at
            self._until = at
        self._took = takes
        self._due = now + TRY_EVERY_S

    def met(self, at: float) -> bool:
        """Say whether a write was refused while the last words of who ended then waited.

        Args:
            at: Unix seconds.
        """
        return self._from - TRY_EVERY_S <= at <= self._until + LAST_S
