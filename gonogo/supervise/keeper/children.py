"""Processes that the keeper starts and reaps, and the signals it receives. Standard library only.

A child dies with the keeper: the kernel's parent-death signal belongs to the thread that forks, so
children are started from the main thread alone.
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
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.processes import ProcessRef, die_with_parent, load_stat

FOR_PROGRAMS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a person or a scheduler sends to a user program."""


@dataclass(slots=True, kw_only=True)
class Child:
    """A process that this one started, and how it ended."""

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
    """Start a process in a session of its own.

    Args:
        command: program and arguments.
        env: its environment.
        cwd: its folder; None: ours.
        pass_fds: the descriptors that it inherits.
        shield: block SIGTERM and SIGUSR in it and in what it starts.
        deaf: ignore SIGUSR in it.
        needs_log: whether a log that cannot be opened is an error.
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
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and inherits descriptors."""
    with open_log(log) as stream:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )


def open_log(path: Path) -> IO[bytes]:
    """Open a log; /dev/null if the disk refuses."""
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


class StopSignals:
    """The signals that asked this keeper to stop.

    Args:
        shield: SIGTERM comes to every process of the run, several times, as Slurm sends it.
    """

    def __init__(self, *, shield: bool) -> None:
        self._shield = shield
        self._received: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._received)

    def listen(self) -> int:
        """Install the handlers; return a descriptor that is readable after any signal."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._received.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGCHLD, *FOR_PROGRAMS):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        return reading

    @property
    def are_two(self) -> bool:
        """Whether a second signal came: the ranks get no more time."""
        counted = [row for row in self._received if row == signal.SIGINT or not self._shield]
        return len(counted) >= 2

    def cause(self) -> tuple[str, str, str]:
        """Return reason, actor and text: Ctrl-C by a person, or a host that is taken away."""
        if self._received[0] == signal.SIGINT:
            return "halted", "operator", "the keeper was asked to stop"
        return "preempted", "infra", "the host asked the run to end (SIGTERM)"
