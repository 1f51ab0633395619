"""How is every process of a run ended, and that proved? A few lines a call; stdlib only.

Last stacks (SIGUSR1 where it is handled, NCCL's recorder), SIGCONT, SIGTERM to ranks and agent,
grace, then SIGKILL to whatever carries the token or descends from the keeper, sweep after sweep,
until none is left. A process is hit as soon as it is read, since one that forks for ever is
elsewhere a moment later.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gonogo.supervise.processes import (
    ProcessRef,
    catches,
    find_descendants,
    find_marked,
    load_stat,
    send_signal,
)

DUMP_S = 0.3
"""How long ranks get to write their stacks."""
SWEEP_S = 0.2
EMPTY_SWEEPS = 3
_END_LIMIT_S = 3.0


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
    ) -> None:
        self._token, self._spare = token, spare
        self._agent, self._ranks = agent, tuple(ranks)
        self._terminate_at = now
        self._terminated = False
        if dump:
            self._dump(pipes)
            self._terminate_at = now + DUMP_S
        self._kill_at = self._terminate_at + grace_s

    def hurry(self, now: float) -> None:
        """Skip what is left of the grace."""
        self._terminate_at = self._kill_at = now

    def advance(self, now: float) -> bool:
        """Do what is due; True when no process of the run is left."""
        if not self._terminated and now >= self._terminate_at:
            self._terminated = True
            if self._kill_at > now:
                self._wake_all()
                for process in (*self._ranks, self._agent):
                    if process is not None:
                        process.send(signal.SIGTERM)
        return now >= self._kill_at and self._sweep()

    def _sweep(self) -> bool:
        """Kill whatever lives, for a moment; True when sweep after sweep found nothing.

        One empty sweep proves nothing: a child that was forked after the listing is not in it.
        """
        give_up = time.monotonic() + SWEEP_S
        empty = 0
        while empty < EMPTY_SWEEPS and time.monotonic() < give_up:
            hit = [send_signal(pid, signal.SIGKILL) for pid in self._living()]
            empty = 0 if hit else empty + 1
        return empty == EMPTY_SWEEPS

    def _dump(self, pipes: Iterable[Path]) -> None:
        for rank in self._ranks:
            if catches(rank.pid, signal.SIGUSR1):
                rank.send(signal.SIGUSR1)
        for pipe in pipes:
            _poke(pipe)
        self._wake_all()

    def _wake_all(self) -> None:
        for pid in self._living():
            send_signal(pid, signal.SIGCONT)

    def _living(self) -> Iterable[int]:
        """Yield the run's living processes: by token, then by descent."""
        spare = self._spare()
        seen: set[int] = set()
        for pid in find_marked(self._token):
            found = load_stat(pid)
            if found is not None and not found.ended and pid not in spare:
                seen.add(pid)
                yield pid
        yield from find_descendants(os.getpid(), leave=spare) - seen


def end_marked(token: str) -> bool:
    """SIGKILL every process of a run until none is left; False when some outlive it."""
    deadline = time.monotonic() + _END_LIMIT_S
    while time.monotonic() < deadline:
        if not [send_signal(pid, signal.SIGKILL) for pid in find_marked(token)]:
            return True
        time.sleep(0.01)
    return False


def _poke(pipe: Path) -> None:
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
