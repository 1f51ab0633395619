"""Find the ranks below a command that is a launcher (torchrun, a shell), and how they ended.

A rank is one of the command's descendants:

- the process that the rank's own heartbeats name;
- else the topmost one whose environment has another RANK than this process (as torchrun sets it).

Linux reports an exit status to the parent only, so it is read just before the parent asks for it,
or remains unknown. Standard library only.
"""

import json
import os
import select
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import save_json
from gonogo.supervise.last_lines import Ended, load_tail, lost_a_peer
from gonogo.supervise.process_records import RankRecord, save_rank_record
from gonogo.supervise.processes import (
    SHELLS,
    ProcessRef,
    find_descendants,
    find_process,
    load_environ,
    load_exit_status,
    load_program,
    load_stat,
)
from gonogo.supervise.transient_errors import start_thread

LOOK_EVERY_S = 0.5
RARELY_S = 5.0
"""Seconds between looks while all ranks are known and alive."""
SETTLE_S = 10.0
"""Seconds to wait for ranks that end together with the command."""
LEAST_REST_X = 50
"""A look through all processes of a large host takes long; the pause is a multiple of it."""
_LINE_BYTES = 16_384
_NAMES = frozenset((b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"))


class Launched:
    """The ranks of one command.

    Args:
        program: the command's own process.
    """

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
        self._save(rank, ref)
        self._ranks[rank] = ref
        self._ends.watch(ref)

    def _save(self, rank: int, ref: ProcessRef) -> None:
        record = RankRecord(
            ref=ref, wrapper=os.getpid(), launched=True, by_shell=self._is_by_shell(ref.pid)
        )
        save_rank_record(self._folder, rank, record, time.time())

    def _is_by_shell(self, pid: int) -> bool:
        """Whether a shell runs between a process and the wrapper, the command included."""
        while pid not in (self._program, 0):
            stat = load_stat(pid)
            pid = 0 if stat is None else stat.ppid
            if load_program(pid) in SHELLS:
                return True
        return False

    def _by_heartbeats(self, below: Collection[int]) -> dict[int, int]:
        """Return rank → the process of its last line, if that is below the command."""
        named = {rank: self._named(rank) for rank in self._here}
        return {rank: pid for rank, pid in named.items() if pid is not None and pid in below}

    def _named(self, rank: int) -> int | None:
        """Return the process that a rank's last line names."""
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
    """How processes ended that are no children of ours; a thread reads it at once."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._noted = threading.Condition()
        self._refs: dict[int, ProcessRef] = {}
        self._ended: dict[ProcessRef, Ended] = {}
        self._thread: threading.Thread | None = None

    def watch(self, ref: ProcessRef) -> None:
        """Watch for the end of a process; one that is gone already is not seen."""
        try:
            descriptor = os.pidfd_open(ref.pid)
        except OSError:
            return
        if not ref.is_alive():
            os.close(descriptor)
            return
        with self._noted:
            self._refs[descriptor] = ref
        self._poll.register(descriptor, select.EPOLLIN)
        self._begin()

    def _begin(self) -> None:
        """Start the thread, now or at the next process."""
        if self._thread is None:
            with suppress(OSError):
                self._thread = start_thread(self._wait, "ends")

    def of(self, ref: ProcessRef) -> Ended | None:
        """Return how a process ended; None where nobody saw it."""
        return self._ended.get(ref)

    def settle(self, limit_s: float) -> None:
        """Wait until the thread has read the end of every process that is gone by now."""
        self._begin()
        with self._noted:
            gone = {ref for ref in self._refs.values() if not ref.is_alive()}
            self._noted.wait_for(lambda: gone.isdisjoint(self._refs.values()), limit_s)

    def _wait(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                ref = self._refs[descriptor]
                status = load_exit_status(ref)
                self._poll.unregister(descriptor)
                with self._noted:
                    if status is not None:
                        self._ended[ref] = _ended(status)
                    del self._refs[descriptor]
                    self._noted.notify_all()
                os.close(descriptor)


def _ended(status: int) -> Ended:
    value = os.waitstatus_to_exitcode(status)
    number = -value if value < 0 else None
    return Ended(code=None if value < 0 else value, signal=number, at=time.time())


def _variables(environ: bytes) -> dict[bytes, bytes]:
    """Return the numbers among the variables of a rank."""
    rows = (row.partition(b"=") for row in environ.split(b"\0"))
    return {name: text for name, _, text in rows if name in _NAMES and text.isdigit()}
