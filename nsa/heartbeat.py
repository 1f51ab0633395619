"""Write `heartbeat_rank{N}.jsonl`: one JSON line an event.

A line is one append, and `seq` is 1, 2, 3, …. A line that the disk refuses is counted, waits in
memory (a megabyte at most) and never stops training. A thread writes `alive` after `alive_every_s`
of silence, and `section` for a section of over a second. With several hosts, lines are synced once
a second.
"""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

VERSION = 1
_ANNOUNCE_AFTER_S = 1.0
_POLL_S = 0.1
_KEPT_BYTES = 2**20
_SHOW_EVERY_S = 1.0
"""How often another host is shown what was written."""
_LAST_S = 10.0
"""How long a rank that is leaving waits for a disk to take its last lines."""


def plain(value: Any) -> Any:
    """A value as JSON can hold it: non-finite floats become "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Heartbeat:
    """The heartbeat file of one rank and the clock of the section it is in.

    `shown` means that other hosts read it while this process has it open.
    """

    def __init__(
        self,
        file: Path,
        *,
        rank: int,
        boot: str,
        alive_every_s: float,
        shown: bool = False,
    ) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(file, flags, 0o644)
        self._rank, self._boot, self._alive_every_s = rank, boot, alive_every_s
        self._shown = shown
        self._unseen = False
        """Whether something was written that other hosts need not see yet."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._seq = 0
        self._waiting = b"\n" if ends_torn(self._fd) else b""
        self.step = 0
        self.in_step = False
        self.section: str | None = None
        self.section_seq = 0
        self.collective_seq = 0
        self.write_failures = 0
        self._section_since = self._last_write = time.monotonic()
        self._announced = False

    def beat(self, msg: str, **fields: Any) -> None:
        """Append one line; never raises for a file system that refuses it."""
        with self._lock:
            self._write(msg, fields)

    @contextmanager
    def in_section(self, name: str) -> Iterator[None]:
        """Name what the rank does meanwhile; outside a step both edges are written at once."""
        self._enter(name)
        yield
        self._enter(None)

    def _enter(self, name: str | None) -> None:
        with self._lock:
            self.section = name
            self.section_seq += 1
            self._section_since = time.monotonic()
            self._announced = name is None or not self.in_step
            if not self.in_step:
                self._write("section", {"collective_seq": self.collective_seq})

    def count_collective(self) -> None:
        """Count a collective that this rank is about to enter."""
        self.collective_seq += 1

    def start_thread(self) -> None:
        """Start the thread that speaks for a silent trainer."""
        self._thread = threading.Thread(target=self._speak, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, have what still waits written if the disk takes it, close the file."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        give_up = time.monotonic() + _LAST_S
        while self._waiting and time.monotonic() < give_up:
            time.sleep(_POLL_S)
            self._append(b"")
        os.close(self._fd)

    def _speak(self) -> None:
        show_at = time.monotonic()
        while not self._closing.wait(_POLL_S):
            if self._shown and time.monotonic() >= show_at:
                self._show()  # not in the lock: the trainer need not wait for a network
                show_at = time.monotonic() + _SHOW_EVERY_S
            with self._lock:
                now = time.monotonic()
                age = now - self._section_since
                if not self._announced and age > _ANNOUNCE_AFTER_S:
                    self._announced = True
                    self._write("section", self._position(age))
                elif now - self._last_write >= self._alive_every_s:
                    self._write("alive", self._position(age))

    def _show(self) -> None:
        """Let other hosts see what is written; it takes as long as their file system takes."""
        if not self._unseen:
            return
        self._unseen = False
        try:
            os.fdatasync(self._fd)
        except OSError:
            self.write_failures += 1

    def _position(self, age_s: float) -> dict[str, Any]:
        return {"section_age_s": round(age_s, 3), "collective_seq": self.collective_seq}

    def _write(self, msg: str, fields: dict[str, Any]) -> None:
        self._seq += 1
        now, mono = time.time(), time.monotonic()
        line = {
            "v": VERSION,
            "ts": now,
            "iso": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            "mono": mono,
            "pid": os.getpid(),
            "rank": self._rank,
            "boot": self._boot,
            "seq": self._seq,
            "step": self.step,
            "msg": msg,
            "section": self.section,
            "section_seq": self.section_seq,
            **plain(fields),
        }
        if self.write_failures:
            line["write_failures"] = self.write_failures
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        self._last_write = mono
        self._append(data)

    def _append(self, lines: bytes) -> None:
        """Append whole lines, after those that wait (`gonogo.trainer` has its own: no import)."""
        if len(self._waiting) < _KEPT_BYTES:
            self._waiting += lines
        try:
            written = os.write(self._fd, self._waiting)
        except OSError:
            self.write_failures += 1
            return
        self._unseen = True
        self.write_failures += written < len(self._waiting)
        self._waiting = self._waiting[written:]


def ends_torn(fd: int) -> bool:
    """Whether an earlier process left a line without its end."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
