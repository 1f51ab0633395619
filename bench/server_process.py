"""What does a server cost? Its process tree's CPU and memory, as Linux counts them.

CPU is what all threads of all processes of the tree took, so waiting and the client count nothing;
what the server takes when it is asked nothing is measured first and taken off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

AT_ONCE = 8
"""Clients that ask at the same time, where it is several."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_READY_LIMIT_S = 180.0


class ServerProcess:
    """A server of ours or of others, from its start until it is ended.

    Args:
        command: what starts it.
        environment: all of its environment.
        ready: the address that answers 200 once it serves.
        log: where it writes what it says.
    """

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], ready: str, log: Path
    ) -> None:
        began = time.monotonic()
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=stream, start_new_session=True
            )
        self.ready_s = self._wait_until(ready, began, log)
        self.ready_cpu_s = self.cpu_s()
        self.idle_share = 0.0
        """CPU seconds a second while it was asked nothing, as `measure_idle` found."""

    def _wait_until(self, ready: str, began: float, log: Path) -> float:
        while time.monotonic() - began < _READY_LIMIT_S:
            if self._process.poll() is not None:
                raise SystemExit(f"it ended with {self._process.returncode}:\n{log.read_text()}")
            try:
                if httpx.get(ready, timeout=5.0).status_code == 200:
                    return time.monotonic() - began
            except httpx.HTTPError:
                pass
            time.sleep(0.02)
        raise SystemExit(f"not ready after {_READY_LIMIT_S:.0f} s:\n{log.read_text()}")

    def close(self) -> None:
        """End it with everything that it started."""
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def cpu_s(self) -> float:
        """CPU seconds of the tree so far, those of its ended children included."""
        return sum(sum(map(int, fields[11:15])) for fields in self._tree()) * _TICK_S

    def rss_mb(self) -> float:
        """Megabytes (2^20 bytes) that the tree's processes have resident; shared ones too."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(fields[21]) for fields in self._tree()) * page / 2**20

    def _tree(self) -> list[list[str]]:
        """Fields of /proc/PID/stat after the name, of the process and its descendants."""
        known: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                known[int(entry.name)] = stat.rpartition(")")[2].split()
        found = {self._process.pid}
        while True:
            more = {pid for pid, fields in known.items() if int(fields[1]) in found} - found
            if not more:
                return [known[pid] for pid in found if pid in known]
            found |= more

    def measure_idle(self, seconds: float) -> float:
        """Leave it alone for so long; returns CPU seconds a second."""
        cpu, began = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        self.idle_share = (self.cpu_s() - cpu) / (time.monotonic() - began)
        return self.idle_share

    def cost_ms(self, call: Callable[[], object], times: int) -> float:
        """CPU milliseconds of the server for one call, the mean over `times`."""
        call()
        cpu, began = self.cpu_s(), time.monotonic()
        for _ in range(times):
            call()
        spent = self.cpu_s() - cpu - self.idle_share * (time.monotonic() - began)
        return spent * 1e3 / times
