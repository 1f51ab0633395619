"""How much room is left where the run writes? The file system's own figures, cheap to ask for.

Told every `REPEAT_S`, and at once when it changed by more than `CHANGE_RATIO`, so that a disk that
fills up between two checkpoints is seen before the next one.
"""

import os
from pathlib import Path
from typing import Any

from gonogo.contract.observation import DiskSeen

REPEAT_S = 5.0
CHANGE_RATIO = 0.05
MB = 2**20


class Disk:
    """The source `disk`.

    Args:
        path: any directory of the file system.
    """

    kind = "disk"
    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._errors = 0
        self._told: DiskSeen | None = None
        self._told_at = float("-inf")

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the room, when there is something to tell.

        Raises:
            OSError: the file system does not answer; counted, and told with the next answer.
        """
        try:
            found = os.statvfs(self._path)
        except OSError:
            self._errors += 1
            raise
        seen = DiskSeen(
            free_mb=round(found.f_bavail * found.f_frsize / MB, 3),
            total_mb=round(found.f_blocks * found.f_frsize / MB, 3),
            errors=self._errors,
        )
        if now < self._told_at + REPEAT_S and not self._has_changed(seen):
            return None
        self._told, self._told_at = seen, now
        return seen.wire()

    def resume(self, payload: Any) -> None:
        """Nothing to take up: the room is what it is now."""

    def _has_changed(self, seen: DiskSeen) -> bool:
        told = self._told
        if told is None:
            return True
        return abs(seen.free_mb - told.free_mb) > CHANGE_RATIO * told.free_mb
