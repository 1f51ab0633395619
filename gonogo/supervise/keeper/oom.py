"""Kills by the kernel for want of memory, from the counters of the control group or of the host.

A rank that the kernel kills looks like any SIGKILL. If only the host counts, another process's
death within the same seconds may be taken for the rank's. Standard library only.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_EVERY_S = 1.0
_KEY = "oom_kill"
GROUP_FILES = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}
"""Controller in /proc/self/cgroup → folder of its hierarchy and the file with the counter (version
2
names no controller)."""


def load_oom_kills(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processes the kernel has killed in our control group; None: unknown.

    Args:
        proc, cgroups: where the kernel's files are.
    """
    for path in (*_group_files(proc, cgroups), proc / "vmstat"):
        found = _count_in(path)
        if found is not None:
            return found
    return None


class OutOfMemory:
    """When the kernel last killed for want of memory.

    Args:
        load: returns the counter.
    """

    def __init__(self, load: Callable[[], int | None] = load_oom_kills) -> None:
        self._load, self._known, self._due = load, load(), float("-inf")
        self.at: float | None = None
        """Unix seconds of the look that found more kills than the one before."""

    def look(self, now: float, *, at_once: bool = False) -> None:
        """Read the counter, when it is time.

        Args:
            now: monotonic seconds.
            at_once: whether to read it now.
        """
        if now < self._due and not at_once:
            return
        self._due = now + LOOK_EVERY_S
        found = self._load()
        if found is not None and self._known is not None and found > self._known:
            self.at = time.time()
        self._known = found if found is not None else self._known


def _group_files(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the files with counters, our group's first.

    In a container the path may be the host's, which is not mounted; then the root is the group.
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
