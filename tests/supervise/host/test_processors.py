"""Use of the host's processors: by a made-up kernel, and by this one under load."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gonogo.contract.observation import HostCpu
from gonogo.rundir import RunDir
from gonogo.supervise.host import usage
from gonogo.supervise.host.usage import HostCpuProbe
from gonogo.supervise.process_records import RankRecord, save_rank_record
from gonogo.supervise.processes import TICKS_PER_S, find_process
from gonogo.watch.detectors.slow import starved_s


class Kernel:
    """A made-up /proc: a run of one rank, and a compiler beside it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.own_s = folder / "proc", 0.0
        (self.proc / "pressure").mkdir(parents=True)
        me = find_process(os.getpid())
        assert me is not None
        save_rank_record(folder, 0, RankRecord(ref=me, wrapper=1), 0.0)
        (self.proc / str(me.pid)).mkdir()
        self.schedstat = self.proc / str(me.pid) / "schedstat"
        monkeypatch.setattr(usage, "load_cpu_s", lambda root: self.own_s)
        self.probe = HostCpuProbe(RunDir(folder), range(1), proc=self.proc)

    def at(self, now: float, *, waited: float, own: float, others: float) -> HostCpu | None:
        """Let so many seconds have passed in all, and look."""
        (self.proc / "pressure" / "cpu").write_text(f"some avg10=0 total={int(waited * 1e6)}\nx\n")
        self.schedstat.write_text(f"0 {int(waited * 1e9)} 1\n")
        busy = int((own + others) * TICKS_PER_S)
        (self.proc / "stat").write_text(f"cpu  {busy} 0 0 999 0 0 0 0 0 0\n")
        self.own_s = own
        payload = self.probe.look(now)
        return None if payload is None else HostCpu.model_validate(payload)


def test_a_quiet_host_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    for number in range(5):
        assert kernel.at(2.0 * number, waited=0.01 * number, own=2.0 * number, others=0.1) is None


def test_a_busy_host_says_how_much_others_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    kernel.at(0.0, waited=0.0, own=0.0, others=0.0)
    first = kernel.at(2.0, waited=1.4, own=0.6, others=3.0)
    assert first is not None
    assert first.others_cores is None, "it is known from the second busy look on"
    seen = kernel.at(4.0, waited=2.8, own=1.2, others=6.0)
    assert seen is not None
    assert (seen.over_s, seen.pressure, seen.waited) == (2.0, 0.7, {"0": 0.7})
    assert seen.others_cores == pytest.approx(1.5)
    assert kernel.at(6.0, waited=2.8, own=3.2, others=6.0) is None


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    probe = HostCpuProbe(RunDir(tmp_path), range(2), proc=tmp_path / "proc")
    assert [probe.look(now) for now in (0.0, 2.0, 4.0)] == [None] * 3


@contextmanager
def burning(core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes on one core."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs run delays")
def test_a_rank_that_shares_its_core_with_three_others_is_starved(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        rank, *_ = [stack.enter_context(burning(core)) for _ in range(4)]
        ref = find_process(rank.pid)
        assert ref is not None
        save_rank_record(tmp_path, 0, RankRecord(ref=ref, wrapper=1), 0.0)
        probe = HostCpuProbe(RunDir(tmp_path), range(1), root=rank.pid)
        seen = None
        for _ in range(3):
            seen = probe.look(time.monotonic()) or seen
            time.sleep(0.5)
    assert seen is not None
    found = HostCpu.model_validate(seen)
    assert found.waited["0"] > 0.4
    assert starved_s(found) > 0.4 * 0.4 or (found.others_cores or 0) < 0.25 * found.cores
