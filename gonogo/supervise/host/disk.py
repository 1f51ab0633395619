"""Measure room and inodes where the run writes, and try a small write.

Reported every `REPEAT_S`, and at once after a change by more than `CHANGE_RATIO`. A quota or a
read-only remount shows only in a write: while one is refused, and for a minute after it, silence of
the ranks says nothing about them. A checkpoint is being written while its draft grows: a folder
`.*.draft`, or the newest folder without a manifest.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gonogo.contract.observation import DiskSeen
from gonogo.supervise.host.checkpoints import MANIFEST
from gonogo.supervise.transient_errors import takes_a_write

REPEAT_S = 5.0
CHANGE_RATIO = 0.05
REFUSED_FOR_S = 60.0
"""Lines that were refused may arrive this much later."""
GREW_WITHIN_S = 60.0
"""A draft that has not grown for so long was left behind, or waits for a disk."""
MOST_FILES = 512
"""Files of a draft that are looked at, at most."""
TRIED_NAME = ".room"
MB = 2**20
UNCOUNTED_MB = 2.0**43
"""Room of a file system that counts none, as many stores behind FUSE."""


class Disk:
    """The source `disk`.

    Args:
        path: the run directory, or any directory of its file system.
    """

    kind = "disk"
    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._errors = 0
        self._try_at = float("-inf")
        self._refused_at = float("-inf")
        self._reported: DiskSeen | None = None
        self._reported_at = float("-inf")
        self._grew: tuple[float, float] | None = None
        """Last write to a draft, by the file system's clock, and when it was seen."""
        self._looked = False

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the room, when there is something to report.

        Raises:
            OSError: the file system does not answer; this is counted.
        """
        try:
            found = os.statvfs(self._path)
        except OSError:
            self._errors += 1
            raise
        other = self._of_checkpoints()
        seen = DiskSeen(
            free_mb=_room(found),
            total_mb=round(found.f_blocks * found.f_frsize / MB, 3),
            checkpoints_mb=None if other is None else _room(other),
            read_only=any(row.f_flag & os.ST_RDONLY for row in (found, other) if row is not None),
            free_files=_free_files(found),
            errors=self._errors,
            refused=self._is_refused(now),
            saving=self._is_saving(now),
        )
        if now < self._reported_at + REPEAT_S and not self._has_changed(seen):
            return None
        self._reported, self._reported_at = seen, now
        return seen.wire()

    def resume(self, payload: Any) -> None:
        """There is nothing to resume."""

    def _has_changed(self, seen: DiskSeen) -> bool:
        last = self._reported
        if last is None or _signs(last) != _signs(seen):
            return True
        figures = (
            (seen.free_mb, last.free_mb),
            (seen.checkpoints_mb or 0.0, last.checkpoints_mb or 0.0),
            (seen.free_files or 0, last.free_files or 0),
        )
        return any(abs(now - before) > CHANGE_RATIO * before for now, before in figures)

    def _of_checkpoints(self) -> os.statvfs_result | None:
        """Return the file system of checkpoints; None if it is the run directory's."""
        folder = self._path / "checkpoints"
        try:
            if folder.stat().st_dev == self._path.stat().st_dev:
                return None
            return os.statvfs(folder)
        except OSError:
            return None

    def _is_refused(self, now: float) -> bool:
        """Try a small write, when it is time; return whether one was refused recently."""
        if now >= self._try_at:
            self._try_at = now + REPEAT_S
            if not takes_a_write(self._path / TRIED_NAME):
                self._refused_at = now
        return now - self._refused_at < REFUSED_FOR_S

    def _is_saving(self, now: float) -> bool:
        """Whether a draft has grown recently; clocks of file servers are not trusted."""
        latest = 0.0
        for folder in self._drafts():
            files = chain(folder.glob("*"), folder.glob("*/*"))
            for path in (folder, *islice(files, MOST_FILES)):
                latest = max(latest, _written_at(path))
        watched, self._looked = self._looked, True
        if not latest:
            self._grew = None
            return False
        if self._grew is None or self._grew[0] != latest:
            fresh = watched or abs(time.time() - latest) < GREW_WITHIN_S
            self._grew = latest, now if fresh else float("-inf")
        return now - self._grew[1] < GREW_WITHIN_S

    def _drafts(self) -> Iterator[Path]:
        """Yield the drafts, and the newest folder if it has no manifest yet."""
        folder = self._path / "checkpoints"
        yield from folder.glob(".*.draft")
        try:
            names = os.listdir(folder)
        except OSError:
            return
        folders = [folder / name for name in names if not name.startswith(".")]
        newest = max(folders, key=_written_at, default=None)
        if newest is not None and not (newest / MANIFEST).exists():
            yield newest


def _written_at(path: Path) -> float:
    """Return the time of the last write in Unix seconds; 0.0 if unknown."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _signs(seen: DiskSeen) -> tuple[bool, ...]:
    return seen.refused, seen.read_only, seen.saving


def _room(found: os.statvfs_result) -> float:
    """Return the megabytes that may be written."""
    if not found.f_blocks:
        return UNCOUNTED_MB
    return round(found.f_bavail * found.f_frsize / MB, 3)


def _free_files(found: os.statvfs_result) -> int | None:
    """Return how many more files fit; None if not counted (Btrfs) or not bounded (CephFS)."""
    return found.f_favail if found.f_files and found.f_favail < 2**53 else None
