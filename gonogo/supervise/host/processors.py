"""Find other processes that take the processors from the ranks (the source `host_cpu`).

A quiet host is looked at cheaply and reports nothing. All processes are read only while tasks wait
for a processor. The run's own processes are the keeper's descendants.

Not covered: runs on several nodes; names of processes that ended between two looks.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gonogo.contract.observation import BusyProgram, HostCpu
from gonogo.rundir import RunDir
from gonogo.supervise.process_records import load_rank_record
from gonogo.supervise.processes import TICKS_PER_S

PRESSURE_SHARE, WAITED_SHARE = 0.2, 0.1
"""Below both the host is quiet."""
NAMED = 3
"""Programs that are named at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process has used."""

    parent: int
    name: str
    started: int
    ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counters of the host at one time; None = unknown."""

    at: float
    pressure_us: int | None
    waited_ns: Mapping[tuple[int, int], int]
    """Rank and pid → nanoseconds in which its main thread waited for a processor."""
    busy_ticks: int | None = None
    processes: Mapping[int, Process] | None = None


class HostCpuProbe:
    """The source `host_cpu`.

    Args:
        run_dir: where the rank wrappers record their processes.
        ranks: those whose processes are on this host.
        root: the process of which the run's are descendants; default: the watcher's parent.
        proc: the kernel's file system.
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
        self._ranks, self._proc = ranks, proc
        self._root = os.getppid() if root is None else root
        self._dir = run_dir.path
        self._cores = len(os.sched_getaffinity(0))
        self._before: Usage | None = None

    def look(self, now: float) -> dict[str, Any] | None:
        """Return who used the processors since the last look; None on a quiet host."""
        before = self._before
        usage = Usage(at=now, pressure_us=self._pressure_us(), waited_ns=self._waited_ns())
        self._before = usage
        if before is None or now <= before.at:
            return None
        over_s, pressure = now - before.at, None
        if before.pressure_us is not None and usage.pressure_us is not None:
            pressure = _share((usage.pressure_us - before.pressure_us) / 1e6, over_s)
        waited = {
            key[0]: _share((waited_ns - before.waited_ns[key]) / 1e9, over_s)
            for key, waited_ns in usage.waited_ns.items()
            if key in before.waited_ns
        }
        if (pressure or 0.0) < PRESSURE_SHARE and max(waited.values(), default=0.0) < WAITED_SHARE:
            return None
        self._before = usage = self._whole(usage)
        others_cores, busiest = self._others(before, usage, over_s)
        return HostCpu(
            over_s=round(over_s, 3),
            cores=self._cores,
            load=float(words[0]) if (words := _text(self._proc / "loadavg").split()) else None,
            pressure=pressure,
            waited={str(rank): share for rank, share in sorted(waited.items())},
            others_cores=others_cores,
            busiest=busiest,
        ).wire()

    def resume(self, payload: Any) -> None:
        """There is nothing to resume."""

    def _whole(self, usage: Usage) -> Usage:
        """Return the usage with that of every process."""
        processes = {}
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal() and (found := _process(Path(entry.path) / "stat")):
                processes[int(entry.name)] = found
        return replace(usage, busy_ticks=self._busy_ticks(), processes=processes)

    def _others(
        self, before: Usage, usage: Usage, over_s: float
    ) -> tuple[float | None, list[BusyProgram]]:
        """Return the processors that others used, and their busiest programs."""
        if before.processes is None or usage.processes is None:
            return None, []
        own, programs = 0, Counter[str]()
        for pid, process in usage.processes.items():
            known = before.processes.get(pid)
            same = known is not None and known.started == process.started
            ticks = process.ticks - (known.ticks if known is not None and same else 0)
            if _descends(pid, self._root, usage.processes):
                own += ticks
            else:
                programs[process.name] += ticks
        per_core = TICKS_PER_S * over_s
        busiest = [
            BusyProgram(name=name, cores=round(ticks / per_core, 2))
            for name, ticks in programs.most_common(NAMED)
            if ticks > 0.05 * per_core
        ]
        if before.busy_ticks is None or usage.busy_ticks is None:
            return None, busiest
        others = max(0, usage.busy_ticks - before.busy_ticks - own)
        return round(others / per_core, 3), busiest

    def _pressure_us(self) -> int | None:
        text = _text(self._proc / "pressure" / "cpu")
        words = text.split("\n", 1)[0].split()
        total = words[-1].removeprefix("total=") if words[:1] == ["some"] else ""
        return int(total) if total.isdecimal() else None

    def _waited_ns(self) -> dict[tuple[int, int], int]:
        found = {}
        for rank in self._ranks:
            record = load_rank_record(self._dir, rank)
            if record is None:
                continue
            words = _text(self._proc / str(record.ref.pid) / "schedstat").split()
            if len(words) == 3:
                found[rank, record.ref.pid] = int(words[1])
        return found

    def _busy_ticks(self) -> int | None:
        """Return the used ticks of all processors."""
        words = _text(self._proc / "stat").split("\n", 1)[0].split()
        if len(words) < 8:
            return None
        user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
        return user + nice + system + irq + softirq


def _share(seconds: float, over_s: float) -> float:
    return round(min(1.0, max(0.0, seconds / over_s)), 3)


def _process(path: Path) -> Process | None:
    """Return the content of /proc/PID/stat; None for a process that is gone."""
    text = _text(path)
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(
        parent=int(fields[1]),
        name=head.partition("(")[2],
        started=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
    )


def _descends(pid: int, root: int, processes: Mapping[int, Process]) -> bool:
    """Whether a process is `root` or a descendant of it."""
    for _ in range(len(processes)):
        if pid == root:
            return True
        process = processes.get(pid)
        if process is None:
            return False
        pid = process.parent
    return False


def _text(path: Path) -> str:
    """Return the content of a file of the kernel; empty if it is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
