"""Write the lines of one rank: those of the script, and those of a thread in silence.

Lines are numbered 1, 2, 3, … in file order, under one lock. The thread writes `alive`, reports a
section that lasts, and answers requests for evidence. Nothing here raises because of a disk or a
missing thread. A forked child never writes.
"""

import fcntl
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gonogo.trainer.encoding import build_line
from gonogo.trainer.evidence import Collectives, StackDumps
from gonogo.trainer.position import PAUSES, Position
from gonogo.trainer.run_dir import RunDir

KEPT_BYTES = 2**20
LAST_S = 10.0
"""How long a program waits for the disk when it leaves."""
ATTACHED = ".attached"
"""File of a run directory: the program writes heartbeats itself."""
OBSERVED = ".observed"
"""File of a run directory: the observer writes them; the program does not look for `.HALT`."""
OBSERVABLE = ".observable"
"""File of a run directory: the program has an optimizer, so the observer can see its steps."""
READ = ".read"
"""File of a run directory: the output is read; the program does not look for `.HALT`."""
SILENCED = ".silenced"
"""File of a run directory: a process found the file of its rank taken and writes nothing."""
SHOW_EVERY_S = 1.0
"""How often lines are synced for a watcher on another host."""
_LOCK_WAIT_S = 5.0
_RETRY_S = 0.05


class Taken(Exception):
    """another process writes this rank's lines"""


class LineFile:
    """The heartbeat file of one rank.

    Raises:
        Taken: another process has held the file for five seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten = b""
        self._torn = False
        """Whether `_unwritten` begins in the middle of a line."""
        self._fd: int | None = None
        self._shown = True
        """Whether other hosts have been shown all that is written."""
        self.failures = 0
        """Writes that were refused so far."""
        try:
            self._open(_LOCK_WAIT_S)
        except OSError:
            self.failures += 1

    def append(self, lines: bytes) -> None:
        """Append complete lines, after those that still wait."""
        self._unwritten += lines
        try:
            fd = self._open(0.0) if self._fd is None else self._fd
            written = os.write(fd, self._unwritten)
        except (OSError, Taken):
            self.failures += 1
            self._forget_oldest()
            return
        self._shown = False
        self.failures += written < len(self._unwritten)
        if written:
            self._torn = self._unwritten[written - 1 : written] != b"\n"
        self._unwritten = self._unwritten[written:]

    def show(self) -> None:
        """Sync what is written, so that other hosts see it; NFS keeps it for half a minute."""
        if self._shown or self._fd is None:
            return
        self._shown = True
        try:
            os.fdatasync(self._fd)
        except OSError:
            self.failures += 1

    def finish(self) -> None:
        """Write what still waits, if the disk takes it in time; then close the file."""
        give_up = time.monotonic() + LAST_S
        while self._unwritten and time.monotonic() < give_up:
            time.sleep(_RETRY_S)
            self.append(b"")
        self.close()

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError:
            self.failures += 1

    def _forget_oldest(self) -> None:
        """Keep at most KEPT_BYTES; a line of which a part is written stays whole."""
        if len(self._unwritten) <= KEPT_BYTES:
            return
        head = self._unwritten.find(b"\n") + 1 if self._torn else 0
        cut = self._unwritten.find(b"\n", len(self._unwritten) - KEPT_BYTES) + 1
        self._unwritten = self._unwritten[:head] + self._unwritten[max(cut, head) :]

    def _open(self, wait_s: float) -> int:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd, wait_s)
            if _ends_torn(fd) and not self._torn:
                self._unwritten = b"\n" + self._unwritten
                self._torn = True
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd


def _lock(fd: int, wait_s: float) -> None:
    """Lock the file while this process has it open; file systems without locks are accepted."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise Taken from None
            time.sleep(_RETRY_S)
        except OSError:
            return None


def _ends_torn(fd: int) -> bool:
    """Whether an earlier process left a torn line."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


_STATUS = Path("/proc/self/status")
_HELD = (b"RssAnon:", b"RssShmem:")


def memory_mb() -> dict[str, float]:
    """Return `host_rss_mb`, and torch's memory on the GPU if it is used."""
    told = {}
    with suppress(OSError, KeyError):  # not on Linux
        told["host_rss_mb"] = round(held_mb(), 3)
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        told["gpu_mem_alloc"] = round(cuda.memory_allocated() / 2**20, 3)
        told["gpu_mem_reserved"] = round(cuda.memory_reserved() / 2**20, 3)
    return told


def held_mb(status: Path = _STATUS) -> float:
    """Return resident memory without mapped files.

    Raises:
        OSError, KeyError: the kernel does not report it.
    """
    rows = (row.split() for row in status.read_bytes().splitlines())
    kib = {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[0] in _HELD}
    return sum(kib[name] for name in _HELD) / 1024


ANNOUNCE_AFTER_S = 1.0
_POLL_S = 0.2
_JOIN_S = 5.0
_TEXT_CHARS = 2000


def described(error: BaseException) -> dict[str, Any]:
    """Return the fields of an `error` line."""
    name = type(error).__name__
    return {"type": name, "text": str(error)[:_TEXT_CHARS] or name}


class Due(NamedTuple):
    """A line that is to be written."""

    msg: str
    fields: dict[str, Any]
    step: int
    section: str | None
    section_seq: int
    at: float
    """By the monotonic clock."""


class HeartbeatWriter:
    """Writes the lines of one rank and keeps its position.

    Raises:
        Taken: another process writes this rank's lines.
    """

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        self.run_dir, self._rank = run_dir, rank
        self._file = LineFile(run_dir.heartbeat(rank))
        self._boot = secrets.token_hex(8)
        self._pid = os.getpid()
        self._seq = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._collective_seq = 0
        self._failed_looks = 0
        self._last_write = time.monotonic()
        self.position = Position(ended=run_dir.resumed_step, since=self._last_write)
        self._stacks = StackDumps(run_dir.path, rank)
        self._collectives = Collectives(run_dir.path, rank)
        self._thread: threading.Thread | None = None
        _writers.add(self)

    observes: ClassVar[bool] = False
    """Whether the observer writes, and not the script itself."""

    @property
    def is_ours(self) -> bool:
        """Whether this process may write: not after the end, and not as a forked child."""
        return not self._closing.is_set() and os.getpid() == self._pid

    def start(self) -> None:
        """Start the thread, if the host gives one."""
        thread = threading.Thread(target=self._run, name="gonogo", daemon=True)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def close(self) -> None:
        """Stop writing."""
        if not self.is_ours:
            return
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._stacks.close()
        self._file.finish()

    def forget(self) -> None:
        """Close what a forked child has inherited."""
        self._closing.set()
        self._file.close()

    def write(self, msg: str, *, step: int | None = None, **fields: Any) -> None:
        """Write a line about a step; default: the present one."""
        with self._lock:
            self._append(self._due(msg, fields, step))

    def enter(self, section: str | None) -> None:
        """Move to a section."""
        with self._lock:
            due = self.position.enter(section, time.monotonic())
            if due is not None:
                self._append(self._due(due, self._counted()))

    def begin(self, *, opens: bool) -> None:
        """Leave section boot; `opens` begins the first step."""
        with self._lock:
            now = time.monotonic()
            due = self.position.enter(None, now)
            if opens:
                self.position.open_step(now)
                due = "step_start"
            if due is not None:
                self._append(self._due(due, {}))

    def go_on_after(self, step: int) -> None:
        """Set the last step that has ended; none is open then."""
        with self._lock:
            self.position.ended, self.position.is_open = step, False

    def reopen_step(self) -> None:
        """Begin the open step again, if nothing of it was computed yet."""
        with self._lock:
            place = self.position
            if place.is_open and place.untouched and place.section not in PAUSES:
                place.open_step(time.monotonic())
                self._append(self._due("step_start", {}))

    def end_step(self, numbers: Mapping[str, Any], tokens: int | None, last: int | None) -> None:
        """End the open step, and begin the next one unless its number was `last`."""
        with self._lock:
            self._append(*self._end(numbers, tokens, last, memory_mb()))

    def _end(
        self,
        numbers: Mapping[str, Any],
        tokens: int | None,
        last: int | None,
        memory: Mapping[str, float],
    ) -> list[Due]:
        """Do what `end_step` does, and return the lines that are due; the lock is held."""
        now, place = time.monotonic(), self.position
        rows: list[Due] = []
        if not place.is_open:
            place.open_step(now)
            rows.append(self._due("step_start", {}))
        took_s = now - place.began
        told: dict[str, Any] = {}
        if tokens is not None and took_s > 0:
            told["toks_per_s"] = tokens / took_s
        if "data" in place.spent_s:
            told["dt_fetch_s"] = round(place.spent_s["data"], 6)
        rows.append(self._due("progress", {**told, **memory, **numbers}))
        place.end_step(now)
        ended: dict[str, Any] = {"dt_step_s": round(took_s, 6), **self._counted()}
        if tokens is not None:
            ended["tokens"] = tokens
        if (sections_s := place.sections_s()) is not None:
            ended["step_sections"] = {name: round(s, 6) for name, s in sections_s.items()}
        rows.append(self._due("step_end", ended))
        if last is None or place.ended < last:
            place.open_step(now)
            rows.append(self._due("step_start", {}))
        return [row._replace(at=now) for row in rows]

    def count_collective(self) -> None:
        """Count a collective that this rank is about to enter."""
        self._collective_seq += 1

    def count_wait(self, seconds: float) -> None:
        """Count seconds of the open step spent waiting for other ranks."""
        self.position.waited_s += seconds

    def _counted(self) -> dict[str, int]:
        return {"collective_seq": self._collective_seq} if self._collective_seq else {}

    def _due(self, msg: str, fields: Mapping[str, Any], step: int | None = None) -> Due:
        """Return a line of now."""
        place = self.position
        step = place.step if step is None else step
        now = time.monotonic()
        return Due(msg, dict(fields), step, place.section, place.section_seq, now)

    def _append(self, *rows: Due) -> None:
        """Number lines and write them; the lock is held."""
        self._last_write = time.monotonic()
        lines = b""
        for row in rows:
            self._seq += 1
            lines += build_line(
                **row._asdict(),
                pid=self._pid,
                rank=self._rank,
                boot=self._boot,
                seq=self._seq,
                failures=self._file.failures,
            )
        self._file.append(lines)

    def _run(self) -> None:
        pause_s = min(_POLL_S, self.run_dir.alive_every_s / 4)
        show_at = time.monotonic()
        while not self._closing.wait(pause_s):
            self._write_if_due()
            if self.run_dir.nodes > 1 and time.monotonic() >= show_at:
                self._file.show()  # outside of the lock: it may take long
                show_at = time.monotonic() + SHOW_EVERY_S
            try:
                self._answer_requests()
            except Exception as error:  # noqa: BLE001 - edge of a thread that must live
                self._failed_looks += 1
                if self._failed_looks == 1:
                    print(f"gonogo: no evidence of this rank: {error!r}", file=sys.stderr)

    def _write_if_due(self) -> None:
        with self._lock:
            now, place = time.monotonic(), self.position
            age_s = place.age_s(now)
            told = {"section_age_s": round(age_s, 3), **self._counted()}
            if not place.announced and age_s > ANNOUNCE_AFTER_S:
                place.announced = True
                self._append(self._due("section", told))
            elif now - self._last_write >= self.run_dir.alive_every_s:
                self._append(self._due("alive", told))

    def _answer_requests(self) -> None:
        name = self._stacks.look()
        if name is not None:
            self.write("stackdump", path=name)
        self._collectives.look()


_writers: weakref.WeakSet[HeartbeatWriter] = weakref.WeakSet()


def writes_already(run_dir: RunDir, rank: int) -> bool:
    """Whether this process writes that rank's lines already."""
    return bool(_writers_of(run_dir, rank))


def end_observation(run_dir: RunDir, rank: int) -> None:
    """Stop the observer's lines, because the script writes itself."""
    for writer in _writers_of(run_dir, rank):
        if writer.observes:
            writer.close()
            for name in (OBSERVED, READ):
                (run_dir.path / name).unlink(missing_ok=True)


def _writers_of(run_dir: RunDir, rank: int) -> list[HeartbeatWriter]:
    file = run_dir.heartbeat(rank)
    rows = [writer for writer in _writers if writer.is_ours]
    return [writer for writer in rows if writer.run_dir.heartbeat(writer._rank) == file]


def _close_inherited() -> None:
    for writer in list(_writers):
        writer.forget()


os.register_at_fork(after_in_child=_close_inherited)
