"""Did the kernel kill a process of the run for want of memory? Its own counters; stdlib only.

A rank that the kernel kills says nothing, and ends as by anybody's SIGKILL. What tells it is the
counter of the control group that it lives in, which counts kills for want of the group's memory and
of the host's. Where no group tells, the host's own counter does: then another's death in the same
seconds may be taken for the rank's.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_EVERY_S = 1.0
_KEY = "oom_kill"
GROUP_FILES = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}
"""Controller, as /proc/self/cgroup names it → folder of its hierarchy, and the file that counts.

Version 2 has one hierarchy and names no controller; version 1 has one for each."""


def load_oom_kills(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processes of this one's group the kernel has killed; None: nobody counts.

    Args:
        proc, cgroups: where the kernel tells.
    """
    for path in (*_group_files(proc, cgroups), proc / "vmstat"):
        found = _count_in(path)
        if found is not None:
            return found
    return None


class OutOfMemory:
    """When the kernel last killed for want of memory, as far as its counter tells.

    Args:
        load: returns the counter.
    """

    def __init__(self, load: Callable[[], int | None] = load_oom_kills) -> None:
        self._load, self._known, self._due = load, load(), float("-inf")
        self.at: float | None = None
        """Unix seconds of the look that found more kills than the one before."""

    def look(self, now: float, *, at_once: bool = False) -> None:
        """Look at the counter, when it is time.

        Args:
            now: monotonic seconds.
            at_once: whether to look whatever the time.
        """
        if now < self._due and not at_once:
            return
        self._due = now + LOOK_EVERY_S
        found = self._load()
        if found is not None and self._known is not None and found > self._known:
            self.at = time.time()
        self._known = found if found is not None else self._known


def _group_files(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the files that may count, the group's own first.

    In a container the path may be the host's, which is not mounted: then the root is the group.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            if controller in GROUP_FILES:
                folder, name = GROUP_FILES[controller]
                root = cgroups / folder
                place = root / path.lstrip("/")
                above = [row for row in (place, *place.parents) if row.is_relative_to(root)]
                yield from (row / name for row in above)


def _count_in(path: Path) -> int | None:
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return None
    found = [row[1] for row in rows if len(row) == 2 and row[0] == _KEY and row[1].isdecimal()]
    return int(found[0]) if found else None
