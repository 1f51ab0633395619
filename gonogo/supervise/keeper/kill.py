"""How is every process of a run ended, and that proved? A few lines a call; stdlib only.

Last stacks (SIGUSR1 where it is handled, NCCL's recorder), SIGCONT, SIGTERM to ranks and agent,
grace, then SIGKILL, sweep after sweep, until none is left: first to those that are known, then to
whatever descends from the keeper, last to whatever carries the token (`marked`, which has a limit
of its own). Each is held by a handle before it is hit, so none that took over its pid is.

What cannot be killed (it hangs in the kernel, or is another user's) is swept again after a pause
that grows, and after UNKILLABLE_S it is told by its state: nobody waits longer for it.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from gonogo.supervise.keeper.marked import Environs
from gonogo.supervise.processes import (
    TOKEN_NAME,
    ProcessRef,
    catches,
    find_descendants,
    load_wait_channel,
)

DUMP_S = 0.3
"""How long ranks get to write their stacks."""
SWEEP_S = 0.2
EMPTY_SWEEPS = 3
UNKILLABLE_S = 60.0
"""After so long what outlives SIGKILL is told, and not waited for."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
SHORT_PAUSE_S = 0.5
"""Longest pause before something is told as unkillable."""
END_LIMIT_S = 3.0


class Killer:
    """Ends the processes of one run; `advance` is called until it says True.

    Args:
        token: the run's token.
        agent: torchrun's process, or None when it ended.
        ranks: the ranks' own processes.
        spare: processes whose trees stay (the watcher).
        grace_s: seconds between SIGTERM and SIGKILL.
        dump: whether to ask for stacks first.
        pipes: NCCL flight recorder pipes; a byte into one makes that rank dump.
        now: monotonic seconds.
        root: the run's keeper; None: this process.
        environs: who finds the processes that carry the token.
    """

    def __init__(
        self,
        *,
        token: str,
        agent: ProcessRef | None,
        ranks: Iterable[ProcessRef],
        spare: Callable[[], frozenset[int]],
        grace_s: float,
        dump: bool,
        pipes: Iterable[Path] = (),
        now: float,
        root: int | None = None,
        environs: Environs | None = None,
    ) -> None:
        self._spare, self._root = spare, os.getpid() if root is None else root
        self._environs = environs or Environs(token)
        self._ranks = tuple(ranks)
        self._known = (*self._ranks, *([agent] if agent is not None else []))
        self._living: frozenset[ProcessRef] = frozenset()
        self._hit: set[ProcessRef] = set()
        self._sweep_at, self._pause_s = float("-inf"), FIRST_PAUSE_S
        self._began: float | None = None
        self._clear = False
        self._terminate_at = now
        self._terminated = False
        if dump:
            self._dump(pipes)
            self._terminate_at = now + DUMP_S
        self._kill_at = self._terminate_at + grace_s

    def hurry(self, now: float) -> None:
        """Skip what is left of the grace."""
        self._terminate_at, self._kill_at = min(self._terminate_at, now), min(self._kill_at, now)

    def advance(self, now: float) -> bool:
        """Do what is due; True when no process of the run is left."""
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
        """Say whether nobody is to wait longer: what is left is told, or that none was proved."""
        return self._began is not None and now - self._began >= UNKILLABLE_S and not self._clear

    def left(self) -> list[dict[str, Any]]:
        """Return what lives of the run, each with its state and where in the kernel it waits."""
        return describe(self._living)

    def _sweep(self, now: float) -> bool:
        """Kill whatever lives, for a moment; True when sweep after sweep found nothing.

        One empty sweep proves nothing: a child that was forked after the listing is not in it.
        """
        known = frozenset(ref for ref in self._known if ref.is_alive())
        for process in known:
            process.send(signal.SIGKILL)
        descendants = self._end_descendants()
        marked = self._environs.sweep(signal.SIGKILL, passes=EMPTY_SWEEPS, spare=self._spare())
        self._living = frozenset(
            ref for ref in known | descendants | marked.found if ref.is_alive()
        )
        if not known and not descendants and not marked.found and marked.whole:
            return True
        self._rest(now, bool(self._living - self._hit))
        self._hit |= self._living
        return False

    def _rest(self, now: float, found_more: bool) -> None:
        """Put the next sweep off, each time for longer, as long as the same ones are left."""
        told = self._began is not None and now - self._began >= UNKILLABLE_S
        longest_s = LONGEST_PAUSE_S if told else SHORT_PAUSE_S
        self._pause_s = FIRST_PAUSE_S if found_more else min(longest_s, 2 * self._pause_s)
        self._sweep_at = now if found_more else now + self._pause_s

    def _end_descendants(self) -> frozenset[ProcessRef]:
        """Kill what descends from the keeper, as long as there is more; return what was there."""
        give_up = time.monotonic() + SWEEP_S
        seen: set[ProcessRef] = set()
        empty = 0
        while empty < EMPTY_SWEEPS and time.monotonic() < give_up:
            living = self._descendants()
            for process in living:
                process.send(signal.SIGKILL)
            if living and seen.issuperset(living):
                break  # they are on their way, or cannot be killed
            empty = 0 if living else empty + 1
            seen |= living
        return frozenset(seen)

    def _dump(self, pipes: Iterable[Path]) -> None:
        for rank in self._ranks:
            if catches(rank.pid, signal.SIGUSR1):
                rank.send(signal.SIGUSR1)
        for pipe in pipes:
            poke(pipe)
        self._wake_all()

    def _wake_all(self) -> None:
        for process in {*self._known, *self._descendants()}:
            process.send(signal.SIGCONT)

    def _descendants(self) -> frozenset[ProcessRef]:
        leave = self._spare() | self._environs.helpers
        return frozenset(find_descendants(self._root, leave=leave).values())


def describe(processes: Iterable[ProcessRef]) -> list[dict[str, Any]]:
    """Return what lives of these, as exit.json tells it: pid, state, and the kernel's function."""
    found = []
    for ref in sorted(processes, key=lambda ref: ref.pid):
        stat = ref.stat()
        if stat is not None and not stat.ended:
            wchan = load_wait_channel(ref.pid)
            found.append({"pid": ref.pid, "state": stat.state, "wchan": wchan})
    return found


def end_marked(
    token: str, folder: Path, known: Collection[ProcessRef] = (), *, name: str = TOKEN_NAME
) -> frozenset[ProcessRef]:
    """SIGKILL every process of a run whose keeper is gone; return what outlives it.

    Args:
        token: the run's token.
        folder: its run directory; a run of this id in another home is not ended.
        known: processes that are known to be the run's.
        name: the name in the environment that holds the token.
    """
    environs = Environs(token, folder=folder, name=name)
    give_up = time.monotonic() + END_LIMIT_S
    pause_s = 0.01
    while True:
        living = {ref for ref in known if ref.is_alive()}
        for process in living:
            process.send(signal.SIGKILL)
        swept = environs.sweep(signal.SIGKILL)
        living |= swept.found
        if not living and swept.whole:
            return frozenset()
        if time.monotonic() >= give_up:
            return frozenset(ref for ref in living if ref.is_alive()) or frozenset(living)
        time.sleep(pause_s)
        pause_s = min(0.2, 2 * pause_s)


def poke(pipe: Path) -> None:
    """Write one byte into a pipe that somebody reads; without a reader nothing happens."""
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
