"""The wrapper between the launcher and one rank. Standard library only.

`python -m gonogo.supervise.launch.rank --dir RUNDIR --keeper PID -- PROGRAM …`

- starts the program with its output in `rank{N}.log`;
- passes SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 on, dies with its parent and takes the program along;
- names the program's process in `.rank{N}.json`, or the ranks below a launcher (`launched_ranks`);
- writes heartbeats from the program's output if the order has patterns (`output_lines`);
- writes `exit_rank{N}.json` and ends as the program ended.
"""

import argparse
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from gonogo.files import append_plain, is_there
from gonogo.supervise.durable import RESERVE_NAME, Reserve, load_json, save_json
from gonogo.supervise.last_lines import Ended, lost_a_peer
from gonogo.supervise.launch.launched_ranks import Launched
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.launch.output_lines import OutputLines
from gonogo.supervise.process_records import RankRecord, save_rank_record
from gonogo.supervise.processes import (
    ProcessRef,
    allow_tracing,
    be_killed_first,
    die_with_parent,
    load_stat,
)
from gonogo.supervise.transient_errors import TransientErrors

_CALLS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_FORWARDED = _CALLS | {signal.SIGTERM, signal.SIGINT}
_WAITED = _FORWARDED | {signal.SIGCHLD}
_READ_EVERY_S = 0.1
_LOOK_S = 0.2
"""Longest time of reading output between two looks for signals."""
_STAMPED_WITHIN_S = 0.25
"""How long the exit record waits for the last lines: half of `process_death.settle_s`."""
LAST_WORDS_S = 10.0
"""How long a disk may refuse the exit record."""
_transient = TransientErrors(logging.getLogger("gonogo.supervise.launch.rank"))
_T = TypeVar("_T")
_R = TypeVar("_R")


def main(argv: list[str]) -> int:
    """Run one rank; return its exit code. A death by a signal is repeated."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.launch.rank")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--keeper", type=int, metavar="PID")
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args(argv)
    order = _transient.retried("the order", partial(load_json, asked.dir / "order.json")) or {}
    told = os.environ.get("RANK", "0")  # noqa: TID251 - torchrun's word; no settings here
    # A command has the number of the first rank on this node.
    here = Place.of(order, asked.node).ranks if order.get("command") else None
    rank = int(told) if here is None else here.start
    die_with_parent()
    if asked.keeper is not None and _is_orphan(asked.keeper, order):
        return 1  # the agent was gone before the line above
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    # The keeper blocks SIGTERM if a scheduler sends it to all processes. Our workload leaves by
    # `.HALT`; a user program may know only the signal.
    shielded = signal.SIGTERM in before and not order.get("command")
    reserve = Reserve(asked.dir, f"{RESERVE_NAME}.rank{rank}", pieces=1)
    _transient.tried("the reserve", reserve.hold, None)
    log = asked.dir / f"rank{rank}.log"
    begin = _transient.retried("its log", lambda: log.stat().st_size if is_there(log) else 0)
    start = partial(_start, asked.program, log, shielded=shielded)
    child = _transient.retried("the program", start)

    def record() -> bool:
        stat = load_stat(child.pid)
        ref = ProcessRef(pid=child.pid, start_ticks=stat.start_ticks if stat else 0)
        save_rank_record(asked.dir, rank, RankRecord(ref=ref, wrapper=os.getpid()), time.time())
        return True

    reads, seeks = bool(order.get("patterns")), bool(order.get("command"))
    read_by = partial(OutputLines, asked.dir, order, log, child.pid, rank=rank, begin=begin)
    reader = Guarded("reading its output", read_by if reads else None)
    find_by = partial(Launched, asked.dir, order, child.pid, here)
    finder = Guarded("looking for its ranks", find_by if seeks else None)
    every_s = _READ_EVERY_S if reads or seeks else 1.0
    status, was_asked = _wait(child, reader, finder, record, every_s=every_s)
    code, number = (status, None) if status >= 0 else (None, -status)
    ended = Ended(code=code, signal=number, at=time.time())

    def close() -> None:
        reader.do(lambda lines: lines.close(status, asked=was_asked), None)

    if is_all := reader.do(lambda lines: lines.read(_STAMPED_WITHIN_S), True):
        close()  # before the exit record: its readers expect all lines
    has_ranks = finder.made is not None
    known = finder.do(Launched.save_ends, frozenset[int]()) if has_ranks else ()
    if rank not in known:
        missed = Guarded("reading its last words", lambda: ended)
        lost = not has_ranks and missed.do(partial(lost_a_peer, asked.dir, order, rank), False)
        path, document = asked.dir / f"exit_rank{rank}.json", replace(ended, lost_peer=lost)
        write = partial(reserve.write, partial(save_json, path, document.document()))
        last = partial(_transient.retried, "the stamp", write, LAST_WORDS_S)
        _transient.tried("how it ended", last, None)
    if not is_all:
        close()
    _transient.tried("the reserve", reserve.free, None)
    if number is not None:
        _die_by(number)
    return status


def _is_orphan(keeper: int, order: dict[str, Any]) -> bool:
    """Whether torchrun, or the keeper above us, is gone.

    The keeper adopts the ranks of a dead torchrun, so the parent of the parent counts.
    """
    parent = os.getppid()
    told = "TORCHELASTIC_RUN_ID" in os.environ  # noqa: TID251 - torchrun's word, as above
    if order.get("command") or not told:
        return parent != keeper
    agent = load_stat(parent)
    return agent is None or agent.ppid != keeper


def _start(program: list[str], log: Path, *, shielded: bool) -> subprocess.Popen[bytes]:
    """Start the program; the end of this thread would end it."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        be_killed_first()
        allow_tracing()
        term = signal.SIG_IGN if shielded else signal.SIG_DFL
        signal.signal(signal.SIGTERM, term)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)

    stream = append_plain(log)
    try:
        return subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            process_group=0,  # `kill -9 0` in the program spares the wrapper
            preexec_fn=prepare,  # safe: this process has one thread
        )
    finally:
        with suppress(OSError):  # network file systems report errors here
            stream.close()


class Guarded(Generic[_T]):
    """A task beside the program: what the host refuses is tried again, another failure ends it.

    Args:
        what: name of the task.
        make: builds what does it; None: there is no such task.
    """

    def __init__(self, what: str, make: Callable[[], _T] | None) -> None:
        self._what, self._make = what, make
        self.made: _T | None = None

    def do(self, work: Callable[[_T], _R], otherwise: _R) -> _R:
        """Return what `work` returns, or `otherwise`."""
        if self._make is None:
            return otherwise
        try:
            return _transient.tried(self._what, partial(self._do, work, self._make), otherwise)
        except Exception as error:  # noqa: BLE001 - the wrapper must outlive the program
            print(f"gonogo: {self._what} ended: {error!r}", file=sys.stderr)
            self._make = self.made = None
            return otherwise

    def _do(self, work: Callable[[_T], _R], make: Callable[[], _T]) -> _R:
        self.made = self.made or make()
        return work(self.made)


def _wait(
    child: subprocess.Popen[bytes],
    reader: Guarded[OutputLines],
    finder: Guarded[Launched],
    record: Callable[[], bool],
    *,
    every_s: float,
) -> tuple[int, bool]:
    """Pass signals on until the program has ended; record its process when the disk takes it.

    Returns:
        its code, or minus its signal, and whether it was asked to end.
    """
    asked = False
    recorded = _transient.tried("which process it is", record, False)
    while (status := child.poll()) is None:
        recorded = recorded or _transient.tried("which process it is", record, False)
        found = signal.sigtimedwait(_WAITED, every_s)
        if found is not None and found.si_signo in _FORWARDED:
            asked = asked or found.si_signo not in _CALLS
            child.send_signal(found.si_signo)
        reader.do(lambda lines: lines.read(_LOOK_S), True)
        finder.do(lambda ranks: ranks.look(time.monotonic()), None)
    return status, asked


def _die_by(number: int) -> None:
    """End by the signal that ended the program, for torchrun's record."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
