"""How much room and how many inodes are left where the run writes? Does it take a small write?

Told every `REPEAT_S`, and at once when it changed by more than `CHANGE_RATIO`, so that a disk that
fills up between two checkpoints is seen before the next one. Whether lines can be written no figure
tells (a quota, a read-only remount), so a file is tried: while it is refused, and for a minute
after it, silence of the ranks says nothing of them. Whether a checkpoint is being written its
folder tells: a rank that writes beside its steps says nothing. Drafts have names with a dot; what
has neither such a name nor a manifest is one of a trainer that writes in place.
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
from gonogo.supervise.weather import takes_a_write

REPEAT_S = 5.0
CHANGE_RATIO = 0.05
REFUSED_FOR_S = 60.0
"""Lines that could not be written may still be on their way for so long."""
GREW_WITHIN_S = 60.0
"""A draft in which nothing was written for so long was left behind, or waits for a disk."""
MOST_FILES = 512
"""Files of a draft that are looked at, at most: of ranks that write at once any tells it."""
TRIED_NAME = ".room"
MB = 2**20
UNCOUNTED_MB = 2.0**43
"""Room of a file system that counts none: as long as a file may be."""


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
        self._told: DiskSeen | None = None
        self._told_at = float("-inf")
        self._grew: tuple[float, float] | None = None
        """When a draft was written to last, by the file system's clock, and when that was seen."""
        self._looked = False
        self._whole: set[str] = set()
        """Checkpoints that have their manifest."""

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
        if now < self._told_at + REPEAT_S and not self._has_changed(seen):
            return None
        self._told, self._told_at = seen, now
        return seen.wire()

    def resume(self, payload: Any) -> None:
        """Nothing to take up: the room is what it is now."""

    def _has_changed(self, seen: DiskSeen) -> bool:
        told = self._told
        if told is None or _signs(told) != _signs(seen):
            return True
        figures = (
            (seen.free_mb, told.free_mb),
            (seen.checkpoints_mb or 0.0, told.checkpoints_mb or 0.0),
            (seen.free_files or 0, told.free_files or 0),
        )
        return any(abs(now - before) > CHANGE_RATIO * before for now, before in figures)

    def _of_checkpoints(self) -> os.statvfs_result | None:
        """Return what the file system of checkpoints says; None where it is the run directory's."""
        folder = self._path / "checkpoints"
        try:
            if folder.stat().st_dev == self._path.stat().st_dev:
                return None
            return os.statvfs(folder)
        except OSError:  # nothing is saved yet, or it is away: who writes there is told so
            return None

    def _is_refused(self, now: float) -> bool:
        """Try a small write, when it is time; say whether one was refused not long ago."""
        if now >= self._try_at:
            self._try_at = now + REPEAT_S
            if not takes_a_write(self._path / TRIED_NAME):
                self._refused_at = now
        return now - self._refused_at < REFUSED_FOR_S

    def _is_saving(self, now: float) -> bool:
        """Say whether a checkpoint's draft is there in which something was written just now.

        What was written since the look before was, whatever the clock of a file server says.
        """
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
        """Yield the folders of drafts, and the newest one that has no manifest yet."""
        folder, begun = self._path / "checkpoints", []
        yield from folder.glob(".*.draft")
        try:
            names = os.listdir(folder)
        except OSError:
            return
        self._whole.intersection_update(names)
        for name in names:
            if name in self._whole or name.startswith("."):
                continue
            if (folder / name / MANIFEST).exists():
                self._whole.add(name)
            else:
                begun.append(folder / name)
        if begun:
            yield max(begun, key=_written_at)


def _written_at(path: Path) -> float:
    """Return when something was written there, in Unix seconds; 0.0 where nobody says."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _signs(seen: DiskSeen) -> tuple[bool, ...]:
    return seen.refused, seen.read_only, seen.saving


def _room(found: os.statvfs_result) -> float:
    """Return the megabytes that may be written, which the reserve of root is not among.

    Many a store behind FUSE counts nothing: no blocks at all, of which none is free.
    """
    if not found.f_blocks:
        return UNCOUNTED_MB
    return round(found.f_bavail * found.f_frsize / MB, 3)


def _free_files(found: os.statvfs_result) -> int | None:
    """Return how many more files there is room for; None where that is not counted or not bounded.

    Btrfs counts none of any; CephFS says -1, which is 2^64 - 1 here.
    """
    return found.f_favail if found.f_files and found.f_favail < 2**53 else None
