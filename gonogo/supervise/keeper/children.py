"""How does the keeper start and reap its children? Stdlib only, from its one thread.

A child dies with the keeper: the kernel's parent-death signal belongs to the thread that forks,
so children are started from the main thread alone.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gonogo.files import append_plain
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.stops import FOR_PROGRAMS
from gonogo.supervise.processes import ProcessRef, die_with_parent, load_stat


@dataclass(slots=True, kw_only=True)
class Child:
    """A process that this one started, and how it ended if it did."""

    ref: ProcessRef
    at: float
    ended: Ended | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON form that keeper.json holds."""
        return {
            "pid": self.ref.pid,
            "start_ticks": self.ref.start_ticks,
            "at": self.at,
            "ended": self.ended.document() if self.ended else None,
        }


def start_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
    shield: bool = False,
    deaf: bool = False,
    needs_log: bool = True,
) -> Child:
    """Start a process in a session of its own, its output added to `log`; `cwd` None: our folder.

    It inherits no descriptors but `pass_fds`. With `shield` the signals of a whole job are blocked
    in it, and in what it starts: SIGTERM, and those that are meant for the program. With `deaf` it
    ignores the latter, unless it asks for one itself. Without `needs_log` one that cannot be opened
    keeps it from nothing.

    Raises:
        OSError: the program or the folder is not there.
    """
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        if shield:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, *FOR_PROGRAMS})
        for number in FOR_PROGRAMS if deaf else ():
            signal.signal(number, signal.SIG_IGN)

    with append_plain(log) if needs_log else open_log(log) as stream:
        process = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
            preexec_fn=prepare,  # safe: this process has one thread
        )
    stat = load_stat(process.pid)
    process.returncode = 0  # reaped by `reap_all`, not by this object
    ref = ProcessRef(pid=process.pid, start_ticks=stat.start_ticks if stat else 0)
    return Child(ref=ref, at=time.time())


def start_heir(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, descriptors: Iterable[int]
) -> None:
    """Start a process that outlives this one and inherits descriptors.

    Raises:
        OSError: it cannot be started.
    """
    with open_log(log) as stream:
        process = subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
    process.returncode = 0  # reaped by `reap_all`, or by whoever is left


def open_log(path: Path) -> IO[bytes]:
    """Open a log that may go without: what a disk does not take is said to nobody."""
    try:
        return append_plain(path)
    except OSError:
        return open(os.devnull, "ab")


def reap_all() -> Iterator[tuple[int, Ended]]:
    """Yield (pid, how it ended) of every child or adopted orphan that ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        value = os.waitstatus_to_exitcode(status)
        number = -value if value < 0 else None
        code = None if value < 0 else value
        yield pid, Ended(code=code, signal=number, at=time.time())
