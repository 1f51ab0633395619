"""Processes that the keeper starts and reaps, and the signals it receives. Standard library only.

A child dies with the keeper: the kernel's parent-death signal belongs to the thread that forks, so
children are started from the main thread alone.
"""

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import IO, Any

from gonogo.device_slots import gpus_of
from gonogo.files import append_plain
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import (
    TOKEN_NAME,
    ProcessRef,
    die_with_parent,
    load_stat,
    load_wait_channel,
    own_module,
)
from gonogo.supervise.transient_errors import TransientErrors

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

    With `shield` SIGTERM comes several times to every process of the run, as Slurm sends it.
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


SILENT_S = 60.0  # The longest silence, if the order sets none.
FIRST_SIGN_S = 600.0
"""The same before the first sign of a watcher, which may fold a long run again."""
DEATHS, DEATHS_WITHIN_S = 5, 60.0
PAUSE_S = 5.0  # Before another try, unless a watcher died that had given signs.
_NEVER = float("inf")

_log = logging.getLogger("gonogo.supervise.keeper")


class Companion:
    """One such process; every call returns at once. With `may_finish` exit code 0 is its end."""

    def __init__(
        self,
        name: str,
        start: Callable[[int], Child],
        *,
        silent_s: float = SILENT_S,
        first_sign_s: float = FIRST_SIGN_S,
        may_finish: bool = False,
    ) -> None:
        self._name, self._start, self._may_finish = name, start, may_finish
        self._silent_s, self._first_sign_s = silent_s, max(silent_s, first_sign_s)
        self.child: Child | None = None
        self._last: Child | None = None
        self.failed: str | None = None  # Why the run has to end.
        self._signs = -1
        self._has_given_sign = self._stopped = False
        self._heard = 0.0
        self._due = -_NEVER
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    def pids(self) -> frozenset[int]:
        """Return its process, which is not part of the run."""
        return frozenset() if self.child is None else frozenset({self.child.ref.pid})

    def document(self) -> dict[str, Any] | None:
        """Return the JSON form that keeper.json holds: the process, or the last one."""
        return None if self._last is None else self._last.document()

    def is_done(self) -> bool:
        """Return whether it has finished, and none is to follow."""
        return self.child is None and self._due == _NEVER

    def let_finish(self) -> None:
        """Note that the run is over: one that exits with 0 is not replaced."""
        self._may_finish = True

    def note(self, pid: int, ended: Ended, now: float) -> bool:
        """Note that a process ended; return whether it was this one."""
        if self.child is None or self.child.ref.pid != pid:
            return False
        self._hear(now)
        self.child.ended, self.child = ended, None
        os.close(self._signs)
        if self._stopped or (self._may_finish and ended.code == 0):
            self._due = _NEVER
            return True
        _log.warning("the %s died: %s", self._name, ended)
        self._due = now + PAUSE_S
        if self._has_given_sign and not self._may_finish:
            self._due = now
            self._deaths.append(now)
            if len(self._deaths) == DEATHS and now - self._deaths[0] <= DEATHS_WITHIN_S:
                self._due = _NEVER
                self.failed = f"the {self._name} died {DEATHS} times in {DEATHS_WITHIN_S:g} s"
        return True

    def tend(self, now: float) -> bool:
        """Start one when it is due (returns True), and end one that is silent."""
        if self.child is None:
            return now >= self._due and self._begin(now)
        self._hear(now)
        limit_s = self._silent_s if self._has_given_sign else self._first_sign_s
        if now - self._heard >= limit_s:
            self._end_silent(self.child, now)
        return False

    def stop(self) -> None:
        """Kill it without waiting; none follows."""
        self._stopped, self._due = True, _NEVER
        if self.child is not None:
            self.child.ref.send(signal.SIGKILL)

    def _begin(self, now: float) -> bool:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.child = self._last = self._start(writing)
        except (OSError, SubprocessError) as error:
            os.close(reading)
            _log.warning("no %s: %s", self._name, error)
            self._due = now + PAUSE_S
            return False
        finally:
            os.close(writing)
        self._signs, self._heard, self._has_given_sign = reading, now, False
        return True

    def _hear(self, now: float) -> None:
        try:
            heard = os.read(self._signs, 4096)
        except BlockingIOError:
            return
        if heard:
            self._heard, self._has_given_sign = now, True

    def _end_silent(self, child: Child, now: float) -> None:
        stat, pid = child.ref.stat(), child.ref.pid
        _log.warning(
            "the %s gave no sign for %.0f s (state %s, in %s): it is replaced",
            self._name,
            now - self._heard,
            stat.state if stat else "gone",
            load_wait_channel(pid) or "no function of the kernel",
        )
        child.ref.send(signal.SIGKILL)
        self._heard = now


class Companions:
    """Watcher, follower and sampler of a node's part of a run, without the run's token."""

    def __init__(
        self,
        *,
        run_dir: Path,
        order: Mapping[str, Any],
        slots: Sequence[str],
        environ: Mapping[str, str],
        watcher: str,
        place: Place,
        transient: TransientErrors,
        save_state: Callable[[], None],
    ) -> None:
        self._dir, self._place = run_dir, place
        self._transient, self._save_state = transient, save_state
        self.environ = {name: text for name, text in environ.items() if name != TOKEN_NAME}
        settings = (order.get("watch") or {}).get("watcher") or {}
        silent_s = settings.get("silent_s", SILENT_S)
        node = ["--node", str(place.node)]
        self._rows: dict[str, Companion] = {}
        if place.leads:
            self._rows["watcher"] = self._build("watcher", watcher, silent_s=silent_s)
        if not place.is_whole:
            module = "gonogo.supervise.node_reporter"
            self._rows["follower"] = self._build("follower", module, *node, silent_s=silent_s)
        if samples_devices(order, slots, environ):
            module = "gonogo.supervise.devices.sampler"
            held = [part for name in slots for part in ("--held", name)]
            self._rows["sampler"] = self._build(
                "sampler", module, *node, *held, first_sign_s=SILENT_S, may_finish=True
            )

    @property
    def failed(self) -> str | None:
        """Why the run has to end, if a watcher dies again and again."""
        return next((row.failed for row in self._rows.values() if row.failed is not None), None)

    def pids(self) -> frozenset[int]:
        """Return their processes, which are not part of the run."""
        return frozenset().union(*(row.pids() for row in self._rows.values()))

    def document(self) -> dict[str, Any]:
        """Return what keeper.json holds of them."""
        found: dict[str, Any] = {"watcher": None, "sampler": None}
        found |= {name: row.document() for name, row in self._rows.items()}
        return found if self._place.is_whole else {**found, "node": self._place.node}

    def tend(self, now: float) -> None:
        """Keep all of them going; `now` in monotonic seconds."""
        for row in self._rows.values():
            if self._transient.tried("a companion", partial(row.tend, now), False):
                self._save_state()

    def note(self, pid: int, ended: Ended, now: float) -> None:
        """Note that a process ended; see `Companion.note`."""
        if any([row.note(pid, ended, now) for row in self._rows.values()]):
            self._save_state()

    def let_finish(self, name: str) -> None:
        """Note that the watcher's run, or the follower's part of it, has ended."""
        if name in self._rows:
            self._rows[name].let_finish()

    def are_done(self) -> bool:
        """Return whether watcher and follower have finished."""
        return all(row.is_done() for name, row in self._rows.items() if name != "sampler")

    def stop_sampler(self) -> None:
        """Kill the sampler without waiting."""
        if "sampler" in self._rows:
            self._rows["sampler"].stop()

    def stop(self) -> None:
        """Kill all of them without waiting."""
        for row in self._rows.values():
            row.stop()

    def _build(self, name: str, module: str, *options: str, **settings: Any) -> Companion:
        log = self._dir / self._place.own(f"{name}.log")

        def start(signs: int) -> Child:
            command = [*own_module(module), str(self._dir), *options, "--signs", str(signs)]
            return start_child(
                command, env=self.environ, log=log, pass_fds=(signs,), deaf=True, needs_log=False
            )

        return Companion(name, start, **settings)


def samples_devices(
    order: Mapping[str, Any], slots: Collection[str], environ: Mapping[str, str]
) -> bool:
    """Return whether a run may have devices: its own, scripted ones, or those of a fault."""
    kind = str(order.get("fault") or "").partition(":")[0]
    scripted = bool(environ.get("GONOGO_DEVICES_SCRIPT")) and bool(order.get("allow_faults"))
    program = (order.get("profile"), order.get("entry"), order.get("command"))
    on_cpu = program == ("cpu", "nsa.train", None)  # it holds a GPU as a place only
    return (bool(gpus_of(slots)) and not on_cpu) or scripted or kind in ("xid", "imbalance")


def build_drain_command(
    run_dir: Path, home: Path, held: Mapping[str, int], node: int = 0
) -> list[str]:
    """Return the command that proves a node's devices free; `held`: slot → its lock."""
    locks = [part for name, number in held.items() for part in ("--held", f"{name}={number}")]
    own = [str(run_dir), "--node", str(node), "--home", str(home)]
    return [*own_module("gonogo.supervise.devices.after_run"), *own, *locks]
