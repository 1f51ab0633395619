"""Measure the memory that is used and its limit: the control group's, or the host's.

A process has several limits: its control group and those above (versions 1 and 2), and the host.
The limit with the least room is reported. Reclaimable memory counts as free: cached pages of files,
names and inodes. A rank's memory is its resident memory without mapped files.

Not covered: the children of a rank; memory that ranks share, which counts for each; the cache of
ZFS, which counts as used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gonogo.contract.observation import HostMemory
from gonogo.rundir import RunDir
from gonogo.supervise.process_records import load_rank_record

MB = 2**20
_UNLIMITED_BYTES = 2**60
_CACHED = ("inactive_file", "active_file", "slab_reclaimable")
"""Names in memory.stat of what the kernel takes back."""
_HELD = ("RssAnon:", "RssShmem:")
"""Names in /proc/PID/status of what is no mapped file."""
_Level = tuple[int, int]
"""Bytes in use, and a limit that holds."""


class HostMemoryProbe:
    """The source `host_memory`.

    Args:
        run_dir: where the rank wrappers record their processes.
        ranks: those whose processes are on this host.
        proc, cgroups: file systems of the kernel.
    """

    kind = "host_memory"
    every_s = 5.0

    def __init__(
        self,
        run_dir: RunDir,
        ranks: range,
        *,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._ranks = ranks
        self._proc, self._cgroups = proc, cgroups
        self._dir = run_dir.path

    def look(self, now: float) -> dict[str, Any] | None:
        """Return memory of the tightest limit and of every rank that runs.

        Raises:
            OSError: /proc/meminfo cannot be read.
        """
        host = _named_numbers((self._proc / "meminfo").read_text(encoding="ascii"))
        total, free = host.get("MemTotal:", 0) * 1024, host.get("MemAvailable:", 0) * 1024
        levels = [(max(0, total - free), total), *self._group_levels()]
        used, limit = min(levels, key=lambda level: level[1] - level[0])
        held = {str(rank): row for rank in self._ranks if (row := self._held_mb(rank)) is not None}
        used_mb, limit_mb = round(used / MB, 1), round(limit / MB, 1)
        return HostMemory(used_mb=used_mb, limit_mb=limit_mb, ranks=held).wire()

    def resume(self, payload: Any) -> None:
        """There is nothing to resume."""

    def _group_levels(self) -> Iterator[_Level]:
        """Yield the limits of this process's control group and of those above it."""
        try:
            lines = (self._proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if controllers == "":
                names = ("memory.max", "memory.current")
                yield from _levels(self._cgroups, path, *names, prefix="")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                yield from _levels(self._cgroups / "memory", path, *names, prefix="total_")

    def _held_mb(self, rank: int) -> float | None:
        """Return the memory that a rank's process holds; None when it does not run."""
        try:
            record = load_rank_record(self._dir, rank)
            if record is None or not record.ref.is_alive():
                return None
            text = (self._proc / str(record.ref.pid) / "status").read_text(encoding="utf-8")
        except OSError:
            return None
        told = _named_numbers(text)
        return round(sum(told[name] for name in _HELD) / 1024, 1) if _HELD[0] in told else None


def _levels(root: Path, path: str, limit: str, used: str, *, prefix: str) -> Iterator[_Level]:
    """Yield the limits of a group and its parents.

    In a container the path may be the host's, which is not mounted: then the root is the group.
    """
    place = root / path.lstrip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(root):
            return
        found = _level(folder, limit, used, prefix)
        if found is not None:
            yield found


def _level(folder: Path, limit: str, used: str, prefix: str) -> _Level | None:
    try:
        limit_bytes = int((folder / limit).read_text(encoding="ascii"))
        used_bytes = int((folder / used).read_text(encoding="ascii"))
        stat = _named_numbers((folder / "memory.stat").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    if limit_bytes >= _UNLIMITED_BYTES:
        return None
    cached = sum(stat.get(prefix + name, 0) for name in _CACHED)
    return max(0, used_bytes - cached), limit_bytes


def _named_numbers(text: str) -> dict[str, int]:
    """Return name → number of lines such as `VmRSS:  1234 kB`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
