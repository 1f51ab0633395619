"""What does a service do on a machine that is N times as fast? As here by a clock that is slower.

    python -m bench.slow_clock N SINCE MODULE [ARGUMENT ...]

The clocks of this process, and all that it waits for in Python, go N times slower; what it computes
takes as long as ever. So of each second by its clock it has N seconds of this machine. Those of
several processes agree where they are slowed SINCE the same moment of the machine's monotonic
clock. What a process starts (a judge), time-outs of sockets, locks and `Thread.join`, and
`datetime.now` keep the machine's own time.
"""

from __future__ import annotations

import runpy
import selectors
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SlowClock:
    """How much slower clocks go, and since when."""

    factor: float
    since: float
    """Seconds of the machine's monotonic clock."""

    def command(self, module: str) -> list[str]:
        """Return what Python is told, to run a module by this clock."""
        return ["bench.slow_clock", repr(self.factor), repr(self.since), module]


def slow_down(clock: SlowClock) -> None:
    """Let the clocks of this process go slower."""
    wall, mono, sleep = time.time, time.monotonic, time.sleep
    factor, began_mono = clock.factor, clock.since
    began_wall = wall() - (mono() - began_mono)
    wait, select = threading.Condition.wait, selectors.EpollSelector.select

    def wait_longer(self: threading.Condition, timeout: float | None = None) -> bool:
        return wait(self, None if timeout is None else timeout * factor)

    def select_longer(self: selectors.EpollSelector, timeout: float | None = None) -> Any:
        return select(self, None if timeout is None else timeout * factor)

    # Python has no seam for a clock: events, queues, pools wait in a condition, asyncio in epoll.
    time.time = lambda: began_wall + (wall() - began_wall) / factor
    time.monotonic = lambda: began_mono + (mono() - began_mono) / factor
    time.sleep = lambda seconds: sleep(seconds * factor)
    threading.Condition.wait = wait_longer  # type: ignore[method-assign]
    selectors.EpollSelector.select = select_longer  # type: ignore[method-assign]


def main() -> None:
    """Run a module by the slower clock."""
    slow_down(SlowClock(float(sys.argv[1]), float(sys.argv[2])))
    module, sys.argv = sys.argv[3], sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
