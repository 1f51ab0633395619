"""Ending every process of a run, and proving that none is left. Standard library only.

Order: stacks (SIGUSR1 where it is handled), SIGCONT, SIGTERM, grace, then SIGKILL
in sweep after sweep until none is left. A sweep hits the recorded processes, the keeper's
descendants, and every process that carries the run's token.

A process that outlives SIGKILL for UNKILLABLE_S (it hangs in the kernel) is reported, and the
keeper stops waiting for it.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import (
    NODE_NAME,
    TOKEN_NAME,
    ProcessRef,
    catches,
    find_descendants,
    iter_pids,
    load_environ,
    load_stat,
    load_wait_channel,
)
from gonogo.supervise.transient_errors import start_thread

DUMP_S = 0.3  # The time that ranks get to write their stacks.
SWEEP_S = 0.2
EMPTY_SWEEPS = 3  # One empty sweep proves nothing: a process may fork after the listing.
UNKILLABLE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
END_LIMIT_S = 3.0
SCAN_LIMIT_S = 5.0

_log = logging.getLogger("gonogo.supervise.keeper")


class TokenScan:
    """Finds the processes that carry a run's token.

    Reading `/proc/PID/environ` takes the process's mmap lock and may hang for ever. So a thread
    reads, and the process at which it hangs is skipped from then on.
    """

    def __init__(
        self,
        token: str,
        *,
        limit_s: float = SCAN_LIMIT_S,
        read: Callable[[int], bytes] = load_environ,
        name: str = TOKEN_NAME,
    ) -> None:
        self._mark, self._limit_s, self._read = f"{name}={token}\0".encode(), limit_s, read
        self._unreadable: set[int] = set()

    def sweep(
        self, number: signal.Signals | None = None, *, passes: int = 1, spare: Iterable[int] = ()
    ) -> tuple[frozenset[ProcessRef], bool]:
        """Return the processes that carry the token, and whether every process could be read.

        Each gets the signal, unless it is None. While none is found, all are read `passes` times.
        """
        skipped = {os.getpid(), *spare, *self._unreadable}
        found: set[ProcessRef] = set()
        reading = [0]

        def work() -> None:
            for _ in range(passes):
                for pid in iter_pids():
                    if pid not in skipped:
                        reading[0] = pid
                        found.update(self._look(pid, number))
                if found:
                    return

        try:
            thread = start_thread(work, "scan")
        except OSError:  # the host has no thread left
            work()
            return frozenset(found), True
        thread.join(self._limit_s)
        if not thread.is_alive():
            return frozenset(found), True
        self._unreadable.add(reading[0])
        _log.warning("process %d does not let its environment be read", reading[0])
        return frozenset(found.copy()), False

    def _look(self, pid: int, number: signal.Signals | None) -> list[ProcessRef]:
        stat = load_stat(pid)
        if stat is None or stat.ended:
            return []
        environ = self._read(pid)
        if not (environ.startswith(self._mark) or b"\0" + self._mark in environ):
            return []
        ref = ProcessRef(pid=pid, start_ticks=stat.start_ticks)
        if number is not None:
            ref.send(number)
        return [ref]


def scan_for(run: str, place: Place) -> TokenScan:
    """Return the scan for the processes of a run, or of this node's part of it."""
    if place.is_whole:
        return TokenScan(run)
    return TokenScan(f"{run}/{place.node}", name=NODE_NAME)


class Killer:
    """Ends the processes of one run; `advance` is called until it returns True."""

    def __init__(
        self,
        *,
        scan: TokenScan,
        agent: ProcessRef | None,
        ranks: Iterable[ProcessRef],
        spare: Callable[[], frozenset[int]],
        grace_s: float,
        dump: bool,
        now: float,
        root: int | None = None,
    ) -> None:
        self._scan, self._spare, self._root = scan, spare, root or os.getpid()
        self._ranks = tuple(ranks)
        self._known = (*self._ranks, *([agent] if agent is not None else []))
        self._living: frozenset[ProcessRef] = frozenset()
        self._hit: set[ProcessRef] = set()
        self._sweep_at, self._pause_s = float("-inf"), FIRST_PAUSE_S
        self._began: float | None = None
        self._clear = self._terminated = False
        self._terminate_at = now
        if dump:
            self._dump()
            self._terminate_at = now + DUMP_S
        self._kill_at = self._terminate_at + grace_s

    def hurry(self, now: float) -> None:
        """Skip the rest of the grace."""
        self._terminate_at, self._kill_at = min(self._terminate_at, now), min(self._kill_at, now)

    def advance(self, now: float) -> bool:
        """Do what is due; return True when no process of the run is left."""
        if not self._terminated and now >= self._terminate_at:
            self._terminated = True
            if self._kill_at > now:
                self._wake_all()
                for process in self._known:
                    process.send(signal.SIGTERM)
        if self._clear or now < self._kill_at or now < self._sweep_at:
            return self._clear
        self._began = now if self._began is None else self._began
        self._clear = self._sweep(now)
        return self._clear

    def has_given_up(self, now: float) -> bool:
        """Return whether something has outlived SIGKILL for UNKILLABLE_S."""
        return self._began is not None and now - self._began >= UNKILLABLE_S and not self._clear

    def left(self) -> list[dict[str, Any]]:
        """Return the living processes of the run, as exit.json holds them."""
        return describe(self._living)

    def _sweep(self, now: float) -> bool:
        known = frozenset(ref for ref in self._known if ref.is_alive())
        for process in known:
            process.send(signal.SIGKILL)
        descendants = self._end_descendants()
        marked, whole = self._scan.sweep(signal.SIGKILL, passes=EMPTY_SWEEPS, spare=self._spare())
        found = known | descendants | marked
        self._living = frozenset(ref for ref in found if ref.is_alive())
        if not found and whole:
            return True
        if self._living - self._hit:
            self._pause_s, self._sweep_at = FIRST_PAUSE_S, now
        else:
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
            self._sweep_at = now + self._pause_s
        self._hit |= self._living
        return False

    def _end_descendants(self) -> frozenset[ProcessRef]:
        """Kill the keeper's descendants until there are no new ones; return all that were found."""
        give_up = time.monotonic() + SWEEP_S
        seen: set[ProcessRef] = set()
        empty = 0
        while empty < EMPTY_SWEEPS and time.monotonic() < give_up:
            living = self._descendants()
            for process in living:
                process.send(signal.SIGKILL)
            if living and seen.issuperset(living):
                break
            empty = 0 if living else empty + 1
            seen |= living
        return frozenset(seen)

    def _dump(self) -> None:
        for rank in self._ranks:
            if catches(rank.pid, signal.SIGUSR1):
                rank.send(signal.SIGUSR1)
        self._wake_all()

    def _wake_all(self) -> None:
        for process in {*self._known, *self._descendants()}:
            process.send(signal.SIGCONT)

    def _descendants(self) -> frozenset[ProcessRef]:
        return frozenset(find_descendants(self._root, leave=self._spare()).values())


def describe(processes: Iterable[ProcessRef]) -> list[dict[str, Any]]:
    """Return pid, state and the kernel's function of each living process."""
    found = []
    for ref in sorted(processes, key=lambda ref: ref.pid):
        stat = ref.stat()
        if stat is not None and not stat.ended:
            wchan = load_wait_channel(ref.pid)
            found.append({"pid": ref.pid, "state": stat.state, "wchan": wchan})
    return found


def find_processes(token: str, *, passes: int = 1) -> frozenset[int]:
    """Return the pids of the processes that carry a run's token."""
    return frozenset(ref.pid for ref in TokenScan(token).sweep(passes=passes)[0])


def end_processes(
    token: str, known: Collection[ProcessRef] = (), *, name: str = TOKEN_NAME
) -> frozenset[ProcessRef]:
    """SIGKILL every process of a run whose keeper is gone; return those that outlive it."""
    scan = TokenScan(token, name=name)
    give_up = time.monotonic() + END_LIMIT_S
    pause_s = 0.01
    while True:
        living = {ref for ref in known if ref.is_alive()}
        for process in living:
            process.send(signal.SIGKILL)
        marked, whole = scan.sweep(signal.SIGKILL)
        living |= marked
        if not living and whole:
            return frozenset()
        if time.monotonic() >= give_up:
            return frozenset(ref for ref in living if ref.is_alive()) or frozenset(living)
        time.sleep(pause_s)
        pause_s = min(0.2, 2 * pause_s)


def poke(pipe: Path) -> None:
    """Write one byte into a pipe that has a reader."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(descriptor, b"1")
    except OSError:
        return
    finally:
        os.close(descriptor)
