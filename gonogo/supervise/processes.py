"""Processes: state, signals, descendants, read from /proc. Standard library only.

A process is named by pid and start time, since pids are reused. The processes of a run carry its
token, `GONOGO_RUN={run id}`, in their environment. Those that dropped it are descendants of the
keeper, which is a subreaper.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOKEN_NAME = "GONOGO_RUN"
NODE_NAME = "GONOGO_RUN_NODE"
"""`{run id}/{node}`, where a run has several nodes: two of them may share a host."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "tcsh"})
"""Programs that hide how the programs they started ended."""
SIGN_EVERY_S = 1.0
_PYTHON = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)
"""Read at the start: a link to "the current release" may point elsewhere later. The last part is
not resolved, since that would leave the virtual environment."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_VICTIM_SCORE = "500"
_ENDED_STATES = frozenset("ZXx")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What /proc/<pid>/stat says; `cpu_ticks` are user and system time in clock ticks."""

    pid: int
    state: str
    ppid: int
    start_ticks: int
    cpu_ticks: int
    threads: int = 1

    @property
    def ended(self) -> bool:
        """Whether it is a zombie, and no other thread of it lives."""
        return self.state in _ENDED_STATES and self.threads <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process."""

    pid: int
    start_ticks: int

    def stat(self) -> Stat | None:
        """Return its state, or None when it is gone."""
        found = load_stat(self.pid)
        return found if found is not None and found.start_ticks == self.start_ticks else None

    def is_alive(self) -> bool:
        """Return whether it runs (stopped counts, a zombie does not)."""
        found = self.stat()
        return found is not None and not found.ended

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this process; return False when it is gone, or not ours to signal."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:  # a kernel, or a sandbox, without handles of processes
            return self.is_alive() and send_signal(self.pid, number)
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(handle)
        return True


def load_stat(pid: int) -> Stat | None:
    """Return the state of a process, or None when it is gone."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    return Stat(
        pid=pid,
        state=fields[0],
        ppid=int(fields[1]),
        start_ticks=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
    )


def load_cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of a process and all below it, ended children included."""
    own = _stat_fields(pid)
    if own is None:
        return None
    below = (_stat_fields(child) for child in find_descendants(pid))
    ticks = sum(sum(map(int, row[11:15])) for row in (own, *below) if row is not None)
    return ticks / TICKS_PER_S


def load_exit_status(ref: ProcessRef) -> int | None:
    """Return how a process ended, as `os.waitpid` would; None before, and once its parent asked."""
    fields = _stat_fields(ref.pid)
    if fields is None or fields[0] not in _ENDED_STATES or int(fields[19]) != ref.start_ticks:
        return None
    return int(fields[49])


def _stat_fields(pid: int) -> list[str] | None:
    text = _read(f"/proc/{pid}/stat")
    return text[text.rindex(b")") + 2 :].decode().split() if text else None


def _read(path: str) -> bytes:
    """Return a file of /proc; empty when the process is gone."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def load_wait_channel(pid: int) -> str:
    """Return in which function of the kernel a process waits; empty if unknown."""
    try:
        with open(f"/proc/{pid}/wchan", "rb") as stream:
            return stream.read().decode(errors="replace").strip("0\n")
    except OSError:
        return ""


def load_program(pid: int) -> str:
    """Return the name of the program that a process runs; empty if unknown."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def find_process(pid: int) -> ProcessRef | None:
    """Return the living process with this pid."""
    found = load_stat(pid)
    if found is None or found.ended:
        return None
    return ProcessRef(pid=pid, start_ticks=found.start_ticks)


def pid_namespace(pid: int | None = None) -> str:
    """Return the pid namespace of a process, our own by default; empty when it is gone."""
    try:
        return os.readlink(f"/proc/{'self' if pid is None else pid}/ns/pid")
    except OSError:
        return ""


def load_environ(pid: int) -> bytes:
    """Return the raw environment of a process; empty when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    lines = _read(f"/proc/{pid}/status").splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(b"SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def iter_pids() -> Iterator[int]:
    """Yield every pid there is."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def find_descendants(root: int, leave: frozenset[int] = frozenset()) -> dict[int, ProcessRef]:
    """Return the living descendants of `root` by pid, without the trees of `leave`."""
    children: dict[int, list[Stat]] = {}
    for pid in iter_pids():
        found = load_stat(pid)
        if found is not None:
            children.setdefault(found.ppid, []).append(found)
    result: dict[int, ProcessRef] = {}
    seen, waiting = {root}, [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid in leave or child.pid in seen:
                continue
            seen.add(child.pid)
            waiting.append(child.pid)
            if not child.ended:
                result[child.pid] = ProcessRef(pid=child.pid, start_ticks=child.start_ticks)
    return result


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return False when there is no such process, or it is not ours to signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def be_killed_first() -> None:
    """Have the kernel kill this process, and what it starts, first when memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text(_VICTIM_SCORE)
    except OSError:  # not on every host
        pass


def allow_tracing() -> None:
    """Let this user's other processes read this one's stack where Yama would forbid it."""
    _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt every orphan among the descendants of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def boot_id() -> str:
    """Return the id of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def own_python() -> str:
    """Return the path of this interpreter."""
    return _PYTHON


def own_module(module: str) -> list[str]:
    """Return the command that runs a module of ours with this interpreter.

    `-P` keeps modules of the current folder (a user's `logging.py`) from hiding ours.
    """
    return [_PYTHON, *(["-P"] if module.startswith("gonogo.") else []), "-m", module]


class LifeSigns:
    """Signs of life for the keeper: one byte a second into a pipe that never blocks."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor, self._due = descriptor, float("-inf")

    def give(self, now: float) -> None:
        """Give a sign when it is time; `now` in monotonic seconds."""
        if self._descriptor is None or now < self._due:
            return
        self._due = now + SIGN_EVERY_S
        try:
            os.write(self._descriptor, b".")
        except OSError:  # the pipe is full, or the keeper is gone
            return
