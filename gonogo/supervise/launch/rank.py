"""The wrapper between the launcher and one rank. Standard library only.

`python -m gonogo.supervise.launch.rank --dir RUNDIR --keeper PID -- PROGRAM …`

- starts the program with its output in `rank{N}.log`;
- passes SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 on, dies with its parent and takes the program along;
- names the program's process in `.rank{N}.json`, or the ranks below a launcher (`Launched`);
- writes heartbeats from the program's output if the order has patterns (`output_lines`);
- writes `exit_rank{N}.json` and ends as the program ended.
"""

import argparse
import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from gonogo.files import append_plain, is_there
from gonogo.supervise.durable import RESERVE_NAME, Reserve, load_json, save_json
from gonogo.supervise.last_lines import Ended, load_tail, lost_a_peer
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.launch.output_lines import OutputLines
from gonogo.supervise.process_records import RankRecord, save_rank_record
from gonogo.supervise.processes import (
    SHELLS,
    ProcessRef,
    allow_tracing,
    be_killed_first,
    die_with_parent,
    find_descendants,
    find_process,
    load_environ,
    load_exit_status,
    load_program,
    load_stat,
)
from gonogo.supervise.transient_errors import TransientErrors, start_thread

LOOK_EVERY_S = 0.5
RARELY_S = 5.0  # Seconds between looks while all ranks are known and alive.
SETTLE_S = 10.0  # Seconds to wait for ranks that end together with the command.
LEAST_REST_X = 50
"""A look through all processes of a large host takes long; the pause is a multiple of it."""
_LINE_BYTES = 16_384
_NAMES = frozenset((b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"))


class Launched:
    """The ranks of one command."""

    def __init__(
        self, folder: Path, order: Mapping[str, Any], program: int, ranks: range | None = None
    ) -> None:
        self._folder, self._order, self._program = folder, order, program
        self._world_size = int(order["world_size"])
        self._here = range(self._world_size) if ranks is None else ranks
        self._own_names = _variables(load_environ(os.getpid()))
        self._ranks: dict[int, ProcessRef] = {}
        self._ends = Ends()
        self._look_at = float("-inf")
        self._calm = False
        self._are_more = False

    def look(self, now: float) -> None:
        """Look for ranks that are unknown or gone, when it is time."""
        if now < self._look_at and (not self._calm or self._all_live()):
            return  # a rank that has ended since may have been started again
        self._seek()
        self._calm = len(self._ranks) == len(self._here) and self._all_live()
        took_s = time.monotonic() - now
        rest_s = RARELY_S if self._calm else LOOK_EVERY_S
        self._look_at = now + max(rest_s, LEAST_REST_X * took_s)

    def _all_live(self) -> bool:
        return all(ref.is_alive() for ref in self._ranks.values())

    def _seek(self) -> None:
        below = find_descendants(self._program)
        if not below:
            return
        found = {**self._by_environment(below), **self._by_heartbeats(below)}
        for rank, pid in sorted(found.items()):
            self._take(rank, pid)

    def save_ends(self) -> frozenset[int]:
        """Write how each rank ended, if it was seen; return the ranks that are known."""
        if self._are_more:
            return frozenset()
        self._ends.settle(SETTLE_S)
        for rank in sorted(self._ranks, reverse=True):  # rank 0's stamp ends the wait
            ended = self._ends.of(self._ranks[rank])
            if ended is not None:
                missed = lost_a_peer(self._folder, self._order, rank, ended)
                ended = replace(ended, lost_peer=missed)
                save_json(self._folder / f"exit_rank{rank}.json", ended.document())
        return frozenset(self._ranks)

    def _take(self, rank: int, pid: int) -> None:
        ref = find_process(pid)
        if ref is None or ref == self._ranks.get(rank):
            return
        self._ends.watch(ref)
        self._save(rank, ref)
        self._ranks[rank] = ref

    def _save(self, rank: int, ref: ProcessRef) -> None:
        record = RankRecord(
            ref=ref, wrapper=os.getpid(), launched=True, by_shell=self._is_by_shell(ref.pid)
        )
        save_rank_record(self._folder, rank, record, time.time())

    def _is_by_shell(self, pid: int) -> bool:
        while pid not in (self._program, 0):
            stat = load_stat(pid)
            pid = 0 if stat is None else stat.ppid
            if load_program(pid) in SHELLS:
                return True
        return False

    def _by_heartbeats(self, below: Collection[int]) -> dict[int, int]:
        named = {rank: self._named(rank) for rank in self._here}
        return {rank: pid for rank, pid in named.items() if pid is not None and pid in below}

    def _named(self, rank: int) -> int | None:
        path = self._folder / f"heartbeat_rank{rank}.jsonl"
        *_, last = [b"", *load_tail(path, _LINE_BYTES).splitlines()[-2:]]
        try:
            found = json.loads(last)
        except (ValueError, RecursionError):
            return None
        pid = found.get("pid") if isinstance(found, dict) else None
        return pid if isinstance(pid, int) else None

    def _by_environment(self, below: Collection[int]) -> dict[int, int]:
        """Return rank → the topmost process with its RANK, if there is only one."""
        names = {pid: _variables(load_environ(pid)) for pid in below}
        told: dict[int, list[int]] = {}
        for pid, said in names.items():
            rank = said.get(b"RANK")
            if rank is None or said == self._own_names:
                continue
            parent = load_stat(pid)
            if parent is not None and names.get(parent.ppid) != said:
                told.setdefault(int(rank), []).append(pid)
                self._are_more |= int(said.get(b"WORLD_SIZE") or 0) > self._world_size
        only = {rank: pids[0] for rank, pids in told.items() if len(pids) == 1}
        return {rank: pid for rank, pid in only.items() if rank in self._here}


class Ends:
    """How processes ended that are no children of ours; a thread of each reads it at once."""

    def __init__(self) -> None:
        self._threads: dict[ProcessRef, threading.Thread] = {}
        self._ended: dict[ProcessRef, Ended] = {}

    def watch(self, ref: ProcessRef) -> None:
        """Watch for the end of a process; one that is gone already is not seen."""
        with suppress(OSError):
            descriptor = os.pidfd_open(ref.pid)
            if ref not in self._threads and ref.stat() is not None:
                self._threads[ref] = start_thread(partial(self._wait, ref, descriptor), "end")
            else:
                os.close(descriptor)

    def of(self, ref: ProcessRef) -> Ended | None:
        """Return how a process ended; None where nobody saw it."""
        return self._ended.get(ref)

    def settle(self, limit_s: float) -> None:
        """Wait until the end of every process that is gone by now was read."""
        give_up = time.monotonic() + limit_s
        for ref in [ref for ref in self._threads if not ref.is_alive()]:
            self._threads[ref].join(max(0.0, give_up - time.monotonic()))

    def _wait(self, ref: ProcessRef, descriptor: int) -> None:
        select.select([descriptor], [], [])
        status = load_exit_status(ref)
        if status is not None:
            value = os.waitstatus_to_exitcode(status)
            code, number = (None, -value) if value < 0 else (value, None)
            self._ended[ref] = Ended(code=code, signal=number, at=time.time())
        os.close(descriptor)


def _variables(environ: bytes) -> dict[bytes, bytes]:
    rows = (row.partition(b"=") for row in environ.split(b"\0"))
    return {name: text for name, _, text in rows if name in _NAMES and text.isdigit()}


_CALLS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_FORWARDED = _CALLS | {signal.SIGTERM, signal.SIGINT}
_WAITED = _FORWARDED | {signal.SIGCHLD}
_READ_EVERY_S = 0.1
_LOOK_S = 0.2  # Longest time of reading output between two looks for signals.
_STAMPED_WITHIN_S = 0.25
"""How long the exit record waits for the last lines: half of `process_death.settle_s`."""
LAST_WORDS_S = 10.0  # How long a disk may refuse the exit record.
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
    """A task beside the program: what the host refuses is tried again, another failure ends it."""

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
    """Pass signals on until the program ends; return its status, and whether it was asked to."""
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
