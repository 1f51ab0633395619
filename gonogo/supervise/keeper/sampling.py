"""Who keeps the sampler of a run alive? The keeper: it starts it, replaces it, and lets it go.

The sampler asks the devices' driver and may die or hang there, so it is a guest: never waited for,
left out when the run's processes are ended, replaced after a pause that grows. One that cannot be
killed (a process inside a dead driver) is left alone and not replaced. Stdlib only.
"""

import logging
import random
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from gonogo.device_slots import gpus_of
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.release import own_module

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
ALIVE_NAME = ".sampler"
SILENT_S = 60.0
"""How long a sampler may make no round before it is ended."""
_LOOK_EVERY_S = 1.0
_JITTER = 0.25
_SCRIPT_NAME = "GONOGO_DEVICES_SCRIPT"
_FAULTS_OF_DEVICES = ("xid", "imbalance")
_OURS, _CPU = "nsa.train", "cpu"

_log = logging.getLogger("gonogo.supervise.keeper")


def is_wanted(order: Mapping[str, Any], slots: Collection[str], environ: Mapping[str, str]) -> bool:
    """Say whether a run may have devices: its own, scripted ones, or those of a fault."""
    kind = str(order.get("fault") or "").partition(":")[0]
    scripted = bool(environ.get(_SCRIPT_NAME)) and bool(order.get("allow_faults"))
    on_cpu = (order.get("profile"), order.get("entry"), order.get("command")) == (_CPU, _OURS, None)
    held = bool(gpus_of(slots)) and not on_cpu  # there a GPU is but the place of a run of ours
    return held or scripted or kind in _FAULTS_OF_DEVICES


def build_sampler_command(run_dir: Path, slots: Collection[str], node: int) -> list[str]:
    """Return the command line of the sampler of one node's part of a run."""
    held = [part for name in slots for part in ("--held", name)]
    own = [str(run_dir), "--node", str(node)]
    return [*own_module("gonogo.supervise.devices.sampler"), *own, *held]


def build_drain_command(
    run_dir: Path, home: Path, held: Mapping[str, int], node: int = 0
) -> list[str]:
    """Return the command line that proves a node's devices free.

    Args:
        run_dir: of the run that ended.
        home: where devices are quarantined.
        held: slot → descriptor of its lock.
        node: whose devices they are.
    """
    locks = [part for name, number in held.items() for part in ("--held", f"{name}={number}")]
    own = [str(run_dir), "--node", str(node), "--home", str(home)]
    return [*own_module("gonogo.supervise.devices.after_run"), *own, *locks]


class Sampling:
    """The sampler of one run; every call returns at once.

    Args:
        run_dir: the run's directory.
        start: starts a sampler; None when the run has no devices.
        alive: name of the file that it touches in every round.
    """

    def __init__(
        self, run_dir: Path, start: Callable[[], Child] | None, alive: str = ALIVE_NAME
    ) -> None:
        self._alive, self._start = run_dir / alive, start
        self.child: Child | None = None
        self._pause_s = FIRST_PAUSE_S
        self._due = float("-inf")
        self._look_at = float("-inf")
        self._touched: float | None = None
        self._heard = 0.0
        self._over = False

    def pids(self) -> frozenset[int]:
        """Return the sampler's process, which nobody has to end."""
        return frozenset() if self.child is None else frozenset({self.child.ref.pid})

    def note(self, pid: int, ended: Ended, now: float) -> None:
        """Take note of a process that ended: ours is started again, unless it has nothing to do.

        Args:
            pid: of the process.
            ended: how it ended.
            now: monotonic seconds.
        """
        if self.child is None or self.child.ref.pid != pid:
            return
        self.child = None
        if ended.code == 0:
            self._start = None
            return
        if not self._over:
            _log.warning("the sampler died: %s; again in %g s", ended, self._pause_s)
        self._pause(now)

    def tend(self, now: float) -> bool:
        """Start a sampler when one is due (True then), and end one that hangs.

        Args:
            now: monotonic seconds.
        """
        if self._over or self._start is None:
            return False
        if self.child is None:
            return now >= self._due and self._begin(self._start, now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._end_if_silent(self.child, now)
        return False

    def stop(self) -> None:
        """End the sampler without waiting: the run is over."""
        self._over = True
        if self.child is not None:
            self.child.ref.send(signal.SIGKILL)

    def _begin(self, start: Callable[[], Child], now: float) -> bool:
        self._heard, self._look_at = now, now + _LOOK_EVERY_S
        try:
            self.child = start()
        except (OSError, SubprocessError) as error:
            _log.warning("no sampler: %s", error)
            self._pause(now)
            return False
        return True

    def _pause(self, now: float) -> None:
        """Put the next start off, each time for longer, and not in step with other runs."""
        self._due = now + self._pause_s * random.uniform(1.0, 1.0 + _JITTER)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def _end_if_silent(self, child: Child, now: float) -> None:
        try:
            touched: float | None = self._alive.stat().st_mtime
        except OSError:
            touched = None
        if touched != self._touched:
            self._touched, self._heard = touched, now
        if now - self._heard >= SILENT_S:
            _log.warning("the sampler hangs")
            self._heard = now
            child.ref.send(signal.SIGKILL)
