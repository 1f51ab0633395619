"""Kills by the kernel for want of memory, from the counter of our control group or of the host.

A rank that the kernel kills looks like any SIGKILL. If only the host counts, another process's
death within the same seconds may be taken for the rank's. Standard library only.
"""

import time
from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 1.0


def load_oom_kills(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processes the kernel has killed for want of memory; None: unknown.

    In a container the path of our group may be the host's. Then the root is our group.

    Args:
        proc, cgroups: where the kernel's files are.
    """
    groups = [row[3:] for row in _lines(proc / "self" / "cgroup") if row.startswith("0::/")]
    own = [cgroups / group.lstrip("/") / "memory.events" for group in (*groups, "/")]
    for path in (*own, proc / "vmstat"):
        for line in _lines(path):
            key, _, count = line.partition(" ")
            if key == "oom_kill" and count.isdecimal():
                return int(count)
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
            at_once: whether to read it now.
        """
        if now < self._due and not at_once:
            return
        self._due = now + LOOK_EVERY_S
        found = self._load()
        if found is not None and self._known is not None and found > self._known:
            self.at = time.time()
        self._known = found if found is not None else self._known


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
