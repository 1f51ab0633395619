"""Memory of host, control group and ranks: a made-up kernel, and this one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.observation import HostMemory
from gonogo.rundir import RunDir
from gonogo.supervise.host.usage import HostMemoryProbe
from gonogo.supervise.processes import load_stat

GB = 2**30


class Kernel:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, *, total_gb: int = 64, available_gb: int = 60) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.folder = folder
        (self.proc / "meminfo").write_text(
            f"MemTotal:       {total_gb * 2**20} kB\nMemFree:        1 kB\n"
            f"MemAvailable:   {available_gb * 2**20} kB\nHugePages_Total:       0\n"
        )

    def says(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")

    def group(self, path: str, files: dict[str, Any]) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            text = value
            if isinstance(value, dict):
                text = "".join(f"{key} {number}\n" for key, number in value.items())
            (folder / name).write_text(f"{text}\n")

    def look(self) -> HostMemory:
        run_dir = RunDir(self.folder)
        probe = HostMemoryProbe(run_dir, range(2), proc=self.proc, cgroups=self.cgroups)
        return HostMemory.model_validate(probe.look(0.0))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def v2(limit: object, current_gb: float, cached_gb: float = 0.0) -> dict[str, Any]:
    half = int(cached_gb * GB / 2)
    return {
        "memory.max": limit,
        "memory.current": int(current_gb * GB),
        "memory.stat": {"anon": 1, "inactive_file": half, "active_file": half},
    }


def gb(seen: HostMemory) -> tuple[float, float | None]:
    limit = None if seen.limit_mb is None else seen.limit_mb / 1024
    return seen.used_mb / 1024, limit


def test_without_control_groups_the_host_says(kernel: Kernel) -> None:
    assert gb(kernel.look()) == (4.0, 64.0)


def test_a_group_counts_without_cached_files(kernel: Kernel) -> None:
    kernel.says("0::/run/x")
    kernel.group("run/x", v2(10 * GB, 9.0, cached_gb=6.0))
    assert gb(kernel.look()) == (3.0, 10.0)


def test_caches_of_names_and_inodes_count_as_free(kernel: Kernel) -> None:
    """A data set of twenty million small files: 62 of 64 GB, and the kernel gives back 16."""
    kernel.says("0::/run/x")
    group = v2(64 * GB, 62.0, cached_gb=1.0)
    group["memory.stat"] |= {"slab_reclaimable": 16 * GB, "slab_unreclaimable": GB}
    kernel.group("run/x", group)
    assert gb(kernel.look()) == (45.0, 64.0)


def test_the_tightest_limit_above_counts(kernel: Kernel) -> None:
    kernel.says("0::/a/b")
    kernel.group("a/b", v2(20 * GB, 5.0))
    kernel.group("a", v2(16 * GB, 15.0))
    assert gb(kernel.look()) == (15.0, 16.0)


def test_a_path_that_is_not_mounted_is_the_root(kernel: Kernel) -> None:
    kernel.says("0::/docker/0123")
    kernel.group(".", v2(8 * GB, 2.0))
    assert gb(kernel.look()) == (2.0, 8.0)


def test_ranks_that_run_are_told_with_the_memory_that_they_hold(tmp_path: Path) -> None:
    own = load_stat(os.getpid())
    assert own is not None
    told = {"pid": own.pid, "start_ticks": own.start_ticks, "wrapper": 1}
    (tmp_path / ".rank0.json").write_text(json.dumps(told))
    (tmp_path / ".rank1.json").write_text(json.dumps({**told, "start_ticks": 1}))
    (tmp_path / ".rank2.json").write_text('{"pid": "x"}')
    (tmp_path / ".rank3.json").write_text("{")
    seen = HostMemory.model_validate(HostMemoryProbe(RunDir(tmp_path), range(5)).look(0.0))
    assert list(seen.ranks) == ["0"]
    assert 10 < seen.ranks["0"] < 10_000
    assert seen.limit_mb is not None
    assert 0 < seen.used_mb < seen.limit_mb


def test_pages_of_mapped_files_are_not_held(kernel: Kernel) -> None:
    status = "VmRSS: 40960 kB\nRssAnon: 2048 kB\nRssFile: 36864 kB\nRssShmem: 2048 kB\n"
    own = load_stat(os.getpid())
    assert own is not None
    told = {"pid": own.pid, "start_ticks": own.start_ticks, "wrapper": 1}
    (kernel.folder / ".rank0.json").write_text(json.dumps(told))
    (kernel.proc / str(own.pid)).mkdir()
    (kernel.proc / str(own.pid) / "status").write_text(status)
    assert kernel.look().ranks == {"0": 4.0}
