"""Memory, processors and room on the disk, as the run uses them.

A process has several limits of memory: its control group, those above, and the host. The limit with
the least room is reported. Reclaimable memory counts as free: cached pages of files, names and
inodes. A rank's memory is its resident memory without mapped files.

Not covered: control groups of version 1; the children of a rank; memory that ranks share, which
counts for each; the cache of ZFS, which counts as used; the processors of several nodes.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gonogo.contract.observation import DiskSeen, HostCpu, HostMemory
from gonogo.rundir import RunDir
from gonogo.supervise.process_records import load_rank_record
from gonogo.supervise.processes import TICKS_PER_S, load_cpu_s
from gonogo.supervise.transient_errors import takes_a_write

MB = 2**20
PRESSURE_SHARE, WAITED_SHARE = 0.2, 0.1
"""Below both the host is quiet."""
_CACHED = ("inactive_file", "active_file", "slab_reclaimable")
"""Names in memory.stat of what the kernel takes back."""
_HELD = ("RssAnon:", "RssShmem:")
"""Names in /proc/PID/status of what is no mapped file."""
_Level = tuple[int, int]
"""Bytes in use, and a limit that holds."""


class HostMemoryProbe:
    """The source `host_memory`."""

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
        self._dir, self._ranks = run_dir.path, ranks
        self._proc, self._cgroups = proc, cgroups

    def look(self, now: float) -> dict[str, Any] | None:
        """Return memory of the tightest limit and of every rank that runs."""
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
        """Yield the limits of this process's control group and of those above it.

        In a container the path may be the host's, which is not mounted: then the root is the group.
        """
        lines = _text(self._proc / "self" / "cgroup").splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::")), "")
        place = self._cgroups / path.lstrip("/")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(self._cgroups):
                return
            found = _level(folder)
            if found is not None:
                yield found

    def _held_mb(self, rank: int) -> float | None:
        """Return the memory that a rank's process holds; None when it does not run."""
        record = load_rank_record(self._dir, rank)
        if record is None or not record.ref.is_alive():
            return None
        told = _named_numbers(_text(self._proc / str(record.ref.pid) / "status"))
        return round(sum(told[name] for name in _HELD) / 1024, 1) if _HELD[0] in told else None


def _level(folder: Path) -> _Level | None:
    """Return the limit of a control group; None without one."""
    try:
        limit_bytes = int((folder / "memory.max").read_text(encoding="ascii"))
        used_bytes = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = _named_numbers((folder / "memory.stat").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
    cached = sum(stat.get(name, 0) for name in _CACHED)
    return max(0, used_bytes - cached), limit_bytes


def _named_numbers(text: str) -> dict[str, int]:
    """Return name → number of lines such as `VmRSS:  1234 kB`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """Counters of the host at one time; None = unknown."""

    at: float
    pressure_s: float | None
    waited_s: dict[tuple[int, int], float]
    """Rank and pid → seconds in which its main thread waited for a processor."""
    others_s: float | None = None
    """Processor seconds of all processes that are not of the run."""


class HostCpuProbe:
    """The source `host_cpu`: do other processes take the processors from the ranks?

    A quiet host is looked at cheaply and reports nothing. Processes are read only while tasks wait.
    The processes of the run are `root` and its descendants; default: the watcher's parent.
    """

    kind = "host_cpu"
    every_s = 2.0

    def __init__(
        self,
        run_dir: RunDir,
        ranks: range,
        *,
        root: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._dir, self._ranks, self._proc = run_dir.path, ranks, proc
        self._root = os.getppid() if root is None else root
        self._before: _Usage | None = None

    def look(self, now: float) -> dict[str, Any] | None:
        """Return how the processors were used since the last look; None on a quiet host."""
        before = self._before
        self._before = usage = _Usage(
            at=now, pressure_s=self._pressure_s(), waited_s=self._waited_s()
        )
        if before is None or now <= before.at:
            return None
        over_s, pressure = now - before.at, None
        if before.pressure_s is not None and usage.pressure_s is not None:
            pressure = _share(usage.pressure_s - before.pressure_s, over_s)
        waited = {
            str(key[0]): _share(waited_s - before.waited_s[key], over_s)
            for key, waited_s in usage.waited_s.items()
            if key in before.waited_s
        }
        if (pressure or 0.0) < PRESSURE_SHARE and max(waited.values(), default=0.0) < WAITED_SHARE:
            return None
        self._before = usage = replace(usage, others_s=self._others_s())
        others = None
        if before.others_s is not None and usage.others_s is not None:
            others = round(max(0.0, usage.others_s - before.others_s) / over_s, 3)
        return HostCpu(
            over_s=round(over_s, 3),
            cores=len(os.sched_getaffinity(0)),
            pressure=pressure,
            waited=waited,
            others_cores=others,
        ).wire()

    def resume(self, payload: Any) -> None:
        """There is nothing to resume."""

    def _pressure_s(self) -> float | None:
        words = _text(self._proc / "pressure" / "cpu").split("\n", 1)[0].split()
        total = words[-1].removeprefix("total=") if words[:1] == ["some"] else ""
        return int(total) / 1e6 if total.isdecimal() else None

    def _waited_s(self) -> dict[tuple[int, int], float]:
        found = {}
        for rank in self._ranks:
            record = load_rank_record(self._dir, rank)
            if record is not None:
                words = _text(self._proc / str(record.ref.pid) / "schedstat").split()
                if len(words) == 3:
                    found[rank, record.ref.pid] = int(words[1]) / 1e9
        return found

    def _others_s(self) -> float | None:
        words = _text(self._proc / "stat").split("\n", 1)[0].split()
        own_s = load_cpu_s(self._root)
        if len(words) < 8 or own_s is None:
            return None
        user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
        return (user + nice + system + irq + softirq) / TICKS_PER_S - own_s


def _share(seconds: float, over_s: float) -> float:
    return round(min(1.0, max(0.0, seconds / over_s)), 3)


def _text(path: Path) -> str:
    """Return the content of a file of the kernel; empty if it is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


REPEAT_S = 5.0
CHANGE_RATIO = 0.05
REFUSED_FOR_S = 60.0
"""Lines that were refused may arrive this much later."""
TRIED_NAME = ".room"
UNCOUNTED_MB = 2.0**43
"""Room of a file system that counts none, as many stores behind FUSE."""


class Disk:
    """The source `disk`: room and inodes where the run writes, and whether a small write succeeds.

    It reports every `REPEAT_S`, and at once after a change by more than `CHANGE_RATIO`. A quota or
    a read-only remount shows only in a write: while one is refused, and for a minute after it,
    silence of the ranks says nothing about them.
    """

    kind = "disk"
    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._try_at = float("-inf")
        self._refused_at = float("-inf")
        self._reported: DiskSeen | None = None
        self._reported_at = float("-inf")

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the room, when there is something to report."""
        found = os.statvfs(self._path)
        other = self._of_checkpoints()
        seen = DiskSeen(
            free_mb=_room(found),
            total_mb=round(found.f_blocks * found.f_frsize / MB, 3),
            checkpoints_mb=None if other is None else _room(other),
            read_only=any(row.f_flag & os.ST_RDONLY for row in (found, other) if row is not None),
            free_files=_free_files(found),
            refused=self._is_refused(now),
        )
        if now < self._reported_at + REPEAT_S and not self._has_changed(seen):
            return None
        self._reported, self._reported_at = seen, now
        return seen.wire()

    def resume(self, payload: Any) -> None:
        """There is nothing to resume."""

    def _has_changed(self, seen: DiskSeen) -> bool:
        last = self._reported
        if last is None or (last.refused, last.read_only) != (seen.refused, seen.read_only):
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


def _room(found: os.statvfs_result) -> float:
    """Return the megabytes that may be written."""
    if not found.f_blocks:
        return UNCOUNTED_MB
    return round(found.f_bavail * found.f_frsize / MB, 3)


def _free_files(found: os.statvfs_result) -> int | None:
    """Return how many more files fit; None if not counted (Btrfs) or not bounded (CephFS)."""
    return found.f_favail if found.f_files and found.f_favail < 2**53 else None
