"""How much memory is used, and how much may be? The control group's figures, or the host's.

Of all limits that hold for this process (its control group, that group's parents, the host) the one
with the least room is told. Cached pages of files count as free, since the kernel takes them back:
a run that reads much data fills the rest of the memory with them and lacks nothing. So do the
kernel's caches of names and inodes, which a data set of millions of small files fills (version 1 of
control groups does not tell them), what ZFS caches beyond its least, and a rank's pages of mapped
files (a data set), which are resident and not held. Memory that ranks share (tensors in /dev/shm)
is resident in each of them: together they are told no more of it than there is. Both versions of
control groups are read. Not counted to a rank: its children.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gonogo.contract.observation import HostMemory
from gonogo.rundir import RunDir
from gonogo.supervise.rank_record import RankRecords

MB = 2**20
_UNLIMITED_BYTES = 2**60
_CACHED = ("inactive_file", "active_file", "slab_reclaimable")
"""Pages of files, and the kernel's caches of names and inodes, in a control group's words."""
_ZFS = "spl/kstat/zfs/arcstats"
"""What ZFS tells of its cache, which `MemAvailable` takes for memory in use."""
_OWN, _SHARED = "RssAnon:", "RssShmem:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a rank's process holds, in KiB."""

    own: int
    shared: int = 0
    """Of memory that other processes may map as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One limit that holds, in bytes."""

    used: int
    limit: int


class HostMemoryProbe:
    """The source `host_memory`.

    Args:
        run_dir: where the rank wrappers write down their processes.
        ranks: those whose processes are on this host.
        proc, cgroups: where the kernel tells.
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
        self._records = RankRecords(run_dir.path)

    def look(self, now: float) -> dict[str, Any] | None:
        """Return memory of the tightest limit and of every rank that runs.

        Raises:
            OSError: /proc/meminfo cannot be read.
        """
        host = _named_numbers((self._proc / "meminfo").read_text(encoding="ascii"))
        levels = [_host_level(host, self._zfs_bytes()), *self._group_levels()]
        tightest = min(levels, key=lambda level: level.limit - level.used)
        held = {rank: row for rank in self._ranks if (row := self._held(rank)) is not None}
        shared = sum(row.shared for row in held.values())
        share = min(1.0, host.get("Shmem:", shared) / shared) if shared else 1.0
        ranks = {
            str(rank): round((row.own + share * row.shared) / 1024, 1) for rank, row in held.items()
        }
        return HostMemory(
            used_mb=round(tightest.used / MB, 1),
            limit_mb=round(tightest.limit / MB, 1),
            ranks=ranks,
        ).wire()

    def resume(self, payload: Any) -> None:
        """Nothing to take up: memory is what it is now."""

    def _zfs_bytes(self) -> int:
        """Return how much of its cache ZFS gives back; none where there is no ZFS."""
        try:
            text = (self._proc / _ZFS).read_text(encoding="ascii")
        except (OSError, ValueError):
            return 0
        rows = (line.split() for line in text.splitlines())
        told = {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[2].isdecimal()}
        return max(0, told.get("size", 0) - told.get("c_min", 0))

    def _group_levels(self) -> Iterator[Level]:
        """Return the limits of this process's control group and of those above it."""
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

    def _held(self, rank: int) -> Held | None:
        """Return the memory that a rank's process holds; None when it does not run.

        That is its resident memory without mapped files, where the kernel tells them apart.
        """
        try:
            record = self._records.of(rank)
            if record is None or not record.ref.is_alive():
                return None
            text = (self._proc / str(record.ref.pid) / "status").read_text(encoding="utf-8")
        except OSError:
            return None
        told = _named_numbers(text)
        if _OWN in told and _SHARED in told:
            return Held(own=told[_OWN], shared=told[_SHARED])
        return Held(own=told["VmRSS:"]) if "VmRSS:" in told else None


def _host_level(found: dict[str, int], zfs_bytes: int) -> Level:
    total, free = found.get("MemTotal:", 0) * 1024, found.get("MemAvailable:", 0) * 1024
    free += zfs_bytes
    return Level(used=max(0, total - free), limit=total)


def _levels(root: Path, path: str, limit: str, used: str, *, prefix: str) -> Iterator[Level]:
    """Return what a group and its parents say; a folder that is not there says nothing.

    In a container the path may be the host's, which is not mounted: then the root is the group.
    """
    place = root / path.lstrip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(root):
            return
        found = _level(folder, limit, used, prefix)
        if found is not None:
            yield found


def _level(folder: Path, limit: str, used: str, prefix: str) -> Level | None:
    try:
        limit_bytes = int((folder / limit).read_text(encoding="ascii"))
        used_bytes = int((folder / used).read_text(encoding="ascii"))
        stat = _named_numbers((folder / "memory.stat").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    if limit_bytes >= _UNLIMITED_BYTES:
        return None
    cached = sum(stat.get(prefix + name, 0) for name in _CACHED)
    return Level(used=max(0, used_bytes - cached), limit=limit_bytes)


def _named_numbers(text: str) -> dict[str, int]:
    """Return name → number of lines such as `VmRSS:  1234 kB`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
