"""The wrapper between the launcher and one rank. Standard library only.

`python -m gonogo.supervise.launch.rank --dir RUNDIR --keeper PID -- PROGRAM …`

- starts the program with its output in `rank{N}.log`; a host that cannot start it for START_LIMIT_S
  fails the preflight;
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
from typing import Any

from gonogo.files import append_plain
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.end_request import EndRequest, ask_kill
from gonogo.supervise.exit_record import Ended, lost_a_peer
from gonogo.supervise.launch.launched_ranks import Launched
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.launch.output_lines import OutputLines
from gonogo.supervise.processes import (
    ProcessRef,
    allow_tracing,
    be_killed_first,
    die_with_parent,
    load_stat,
)
from gonogo.supervise.rank_record import RankRecord, save_rank_record
from gonogo.supervise.weather import RESERVE_NAME, SCARCE, START_LIMIT_S, Reserve, Weather

_CALLS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_FORWARDED = _CALLS | {signal.SIGTERM, signal.SIGINT}
_WAITED = _FORWARDED | {signal.SIGCHLD}
_READ_EVERY_S = 0.1
_LOOK_S = 0.2
"""Longest time of reading output between two looks for signals."""
_STAMPED_WITHIN_S = 0.25
"""How long the exit record waits for the last lines: half of `process_death.settle_s`."""
_UNFIT = 1
"""Exit code if nothing could be started."""
LAST_WORDS_S = 10.0
"""How long a disk may refuse the exit record."""
_STAMP_BYTES = 2**14
"""Room held on the disk for the exit record."""
_weather = Weather(logging.getLogger("gonogo.supervise.launch.rank"))


def main(argv: list[str]) -> int:
    """Run one rank; return its exit code. A death by a signal is repeated."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.launch.rank")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--keeper", type=int, metavar="PID")
    parser.add_argument("--node", type=int, default=0, metavar="K")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args(argv)
    order = _weather.at_length("the order", partial(load_json, asked.dir / "order.json")) or {}
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
    reserve = Reserve(asked.dir, f"{RESERVE_NAME}.rank{rank}", _STAMP_BYTES)
    _weather.tried("the reserve", reserve.hold, None)
    log = asked.dir / f"rank{rank}.log"
    begin = _weather.at_length("its log", partial(_size_of, log))
    try:
        child = _weather.at_length(
            "the program", partial(_start, asked.program, log, shielded=shielded)
        )
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        print(f"gonogo: the program cannot be started: {error}", file=sys.stderr)
        _weather.tried("a request", partial(_ask_for_another_host, asked.dir, error), None)
        _weather.tried("the reserve", reserve.free, None)
        return _UNFIT

    def record() -> bool:
        stat = load_stat(child.pid)
        ref = ProcessRef(pid=child.pid, start_ticks=stat.start_ticks if stat else 0)
        save_rank_record(asked.dir, rank, RankRecord(ref=ref, wrapper=os.getpid()), time.time())
        return True

    looking = Looking(asked.dir, order, rank, child.pid, here=here, begin=begin)
    status, was_asked = _wait(child, looking, record)
    code, number = (status, None) if status >= 0 else (None, -status)
    ended = Ended(code=code, signal=number, at=time.time())
    close = partial(looking.close, status, asked=was_asked)
    if is_all := looking.read(_STAMPED_WITHIN_S):
        close()  # before the exit record: its readers expect all lines
    launched = looking.launched
    if rank not in _save_ends(launched):
        stamp = replace(
            ended, lost_peer=launched is None and _missed(asked.dir, order, rank, ended)
        )
        tell = partial(_tell_end, asked.dir / f"exit_rank{rank}.json", stamp, reserve)
        _weather.tried("how it ended", tell, None)
    if not is_all:
        close()
    _weather.tried("the reserve", reserve.free, None)
    if number is not None:
        _die_by(number)
    return status


def _tell_end(path: Path, stamp: Ended, reserve: Reserve) -> None:
    """Write the exit record; one that the disk refused at first says so.

    Raises:
        OSError: it was refused for LAST_WORDS_S.
    """
    try:
        reserve.write(partial(save_json, path, stamp.document()))
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        save = partial(save_json, path, replace(stamp, disk_refused=True).document())
        _weather.at_length("the stamp", partial(reserve.write, save), LAST_WORDS_S)


def _size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _ask_for_another_host(folder: Path, error: OSError) -> None:
    """Ask the keeper to end the run as `preflight_failed`, so that another host gets it.

    Raises:
        OSError: the disk refuses.
    """
    request = EndRequest(
        reason="preflight_failed",
        ended_by="infra",
        at=time.time(),
        text=f"the program could not be started for {START_LIMIT_S:g} s: {error}",
        grace_s=0.0,
        dump=False,
    )
    Reserve(folder).write(partial(ask_kill, folder, request))


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


class Looking:
    """Looks at the output of a running program, and for the ranks of a launcher.

    What the host refuses is tried again. Any other failure ends only the looking, not the wrapper.

    Args:
        folder: the run directory.
        order: the order as data.
        rank: of the output.
        pid: of the program.
        here: the ranks of this node; None: all.
        begin: bytes that the log had before it.
    """

    def __init__(
        self,
        folder: Path,
        order: dict[str, Any],
        rank: int,
        pid: int,
        *,
        here: range | None = None,
        begin: int,
    ) -> None:
        self._reader: OutputLines | None = None
        self.launched: Launched | None = None
        """The ranks of a launcher; None without one."""
        log = folder / f"rank{rank}.log"
        self._read_by = partial(OutputLines, folder, order, log, pid, rank=rank, begin=begin)
        self._look_by = partial(Launched, folder, order, pid, here)
        self._reads, self._looks = bool(order.get("patterns")), bool(order.get("command"))
        self._is_all = True

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._reads and not self._looks

    def look(self) -> None:
        """Look once."""
        self.read(_LOOK_S)
        if self._looks and not _goes_on(self._seek, "its ranks", "are looked for"):
            self._looks, self.launched = False, None

    def read(self, within_s: float) -> bool:
        """Read for at most so long; return whether everything was read."""
        self._is_all = True
        read = partial(self._read, within_s)
        if self._reads and not _goes_on(read, "its output", "is read"):
            self._reads, self._reader = False, None
        return self._is_all

    def close(self, status: int, *, asked: bool) -> None:
        """Read what is left.

        Args:
            status: how the program ended.
            asked: whether it was told to end.
        """
        if self._reads:
            _goes_on(partial(self._close, status, asked=asked), "its output", "is read")

    def _read(self, within_s: float) -> None:
        self._reader = self._reader or self._read_by()
        self._is_all = self._reader.read(within_s)

    def _close(self, status: int, *, asked: bool) -> None:
        self._reader = self._reader or self._read_by()
        self._reader.close(status, asked=asked)

    def _seek(self) -> None:
        self.launched = self.launched or self._look_by()
        self.launched.look(time.monotonic())


def _goes_on(look: Callable[[], None], what: str, done: str) -> bool:
    """Look; return whether to look again: not after a failure other than the host's."""
    try:
        _weather.tried(what, look, None)
    except Exception as error:  # noqa: BLE001 - the wrapper must outlive the program
        print(f"gonogo: {what} {done} no more: {error!r}", file=sys.stderr)
        return False
    return True


def _wait(
    child: subprocess.Popen[bytes], looking: Looking, record: Callable[[], bool]
) -> tuple[int, bool]:
    """Pass signals on until the program has ended; record its process when the disk takes it.

    Returns:
        its code, or minus its signal, and whether it was asked to end.
    """
    asked = False
    recorded = _weather.tried("which process it is", record, False)
    while (status := child.poll()) is None:
        recorded = recorded or _weather.tried("which process it is", record, False)
        found = signal.sigtimedwait(_WAITED, 1.0 if looking.is_idle else _READ_EVERY_S)
        if found is not None and found.si_signo in _FORWARDED:
            asked = asked or found.si_signo not in _CALLS
            child.send_signal(found.si_signo)
        looking.look()
    return status, asked


def _save_ends(launched: Launched | None) -> frozenset[int]:
    """Write how a launcher's ranks ended; return those ranks."""
    try:
        return frozenset() if launched is None else launched.save_ends()
    except Exception as error:  # noqa: BLE001 - the command's own end follows
        print(f"gonogo: how its ranks ended cannot be written: {error!r}", file=sys.stderr)
        return frozenset()


def _missed(folder: Path, order: dict[str, Any], rank: int, ended: Ended) -> bool:
    """Whether a rank's log says that it lost a peer."""
    try:
        return lost_a_peer(folder, order, rank, ended)
    except Exception as error:  # noqa: BLE001 - its end is recorded all the same
        print(f"gonogo: its last words cannot be read: {error!r}", file=sys.stderr)
        return False


def _die_by(number: int) -> None:
    """End by the signal that ended the program, for torchrun's record."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
