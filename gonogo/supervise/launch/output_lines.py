"""Write the heartbeats of a program that does not know gonogo, from the lines that it prints.

Each new step in the program's log becomes `progress` in the heartbeat file of its rank. `alive`
follows while the program lives, and `done` if it left with 0 after its last step. Lines that arrive
together are spaced evenly. A program that writes heartbeats itself is left alone. Not covered: a
log that is renamed or removed. Standard library only.
"""

import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.files import read_plain
from gonogo.supervise.launch.printed_steps import PrintedSteps, Shown, is_lost
from gonogo.supervise.processes import SHELLS, load_program, load_stat
from gonogo.trainer.encoding import build_line
from gonogo.trainer.heartbeat_writer import (
    ATTACHED,
    LAST_S,
    OBSERVABLE,
    OBSERVED,
    READ,
    SHOW_EVERY_S,
    LineFile,
    Taken,
)

LINE_BYTES = 8192  # Longer lines are cut.
_READ_BYTES = 2**18
_POLL_S = 0.1
_STANDING = re.compile(rb"\d/\d+ \[\d+:\d[^\]]{0,400}\]$")
"""A progress bar of tqdm, which ends its line at its next state."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OutputLines:
    """Reads one program's log and writes its heartbeats."""

    def __init__(
        self,
        folder: Path,
        order: Mapping[str, Any],
        log: Path,
        pid: int,
        *,
        rank: int = 0,
        begin: int = 0,
    ) -> None:
        self._folder, self._order, self._pid = folder, order, pid
        self._log = LogLines(log, begin)
        self._alive_every_s = float((order.get("heartbeat") or {}).get("alive_every_s") or 5.0)
        self._is_off = not order.get("patterns")
        self._steps: int = order.get("steps") or 0
        patterns, guessed = order.get("patterns") or (), bool(order.get("patterns_guessed"))
        self._printed = PrintedSteps(patterns, order.get("steps"), guessed=guessed, rank=rank)
        self._ranks: dict[int, _Rank] = {}
        self._has_others = int(order.get("nodes") or 1) > 1
        self._began = self._looked = self._show_at = time.monotonic()
        self._bar: bytes | None = None  # a bar that was read while it stood
        self._yields = False  # whether the observer writes the heartbeats
        self._is_closing = False
        # Nobody sees how a program ends below a shell.
        self._by_shell = os.path.basename((order.get("command") or ("",))[0]) in SHELLS

    def read(self, within_s: float = math.inf) -> bool:
        """Write what is new, and `alive` of silent ranks; say whether that was all."""
        if self._is_off:
            return True
        if (self._folder / ATTACHED).exists():
            self._yield()
            return True
        if self._yields:
            self._resume()
        if not (self._ranks or self._is_closing) and (self._folder / OBSERVABLE).exists():
            return True
        if program := load_program(self._pid):
            self._by_shell = program in SHELLS
        give_up, is_all = time.monotonic() + within_s, True
        for line in self._log.lines():
            self._take(line)
            if not (is_all := time.monotonic() < give_up):
                break
        if is_all:
            self._looked = time.monotonic()
            if _STANDING.search(self._log.rest) is not None:
                self._take(self._log.rest)
                self._bar = self._log.rest
        self._write()
        return is_all

    def _write(self) -> None:
        shows = self._has_others and time.monotonic() >= self._show_at
        stat = load_stat(self._pid)
        is_stopped = stat is not None and stat.state == "T"
        for rank in self._ranks.values():
            rank.flush()
            is_due = time.monotonic() - rank.written_at >= self._alive_every_s
            if is_due and not is_stopped:  # its silence is to be seen
                rank.write("alive")
            if shows:
                self._show_at = time.monotonic() + SHOW_EVERY_S
                rank.file.show()

    def close(self, code: int, *, asked: bool) -> None:
        """Write the rest, and `done` of each rank that left by itself at a known end.

        A shell's exit code 0 does not prove that of its program.
        """
        self._is_closing = True
        by_itself = self._read_the_rest() and code == 0 and not asked
        if not self._is_off and self._log.rest:
            self._take(self._log.rest)
        for number, rank in self._ranks.items():
            rank.flush()
            proved = rank.step < self._steps or not self._by_shell
            if by_itself and proved and self._printed.doubt(number) is None:
                rank.write("done")
            rank.file.finish()

    def _read_the_rest(self) -> bool:
        give_up = time.monotonic() + LAST_S
        while True:
            with suppress(OSError):
                self.read()
                if not self._log.is_refused:
                    return True
            if time.monotonic() >= give_up:
                return False
            time.sleep(_POLL_S)

    def _yield(self) -> None:
        """Stop writing: the program or the observer writes the heartbeats."""
        for rank in self._ranks.values():
            rank.file.finish()
        self._ranks, self._yields = {}, True
        if (self._folder / OBSERVED).exists():
            for _ in self._log.lines():
                pass
            return
        self._is_off = True
        with suppress(OSError):
            (self._folder / READ).unlink()

    def _resume(self) -> None:
        """Write again after the observer has failed; each rank begins a new boot."""
        self._yields = False
        for file in sorted(self._folder.glob("heartbeat_rank*.jsonl")):
            self._open(int(file.stem.removeprefix("heartbeat_rank")), again=True)

    def _take(self, line: bytes) -> None:
        if line == self._bar:
            return
        text = line[:LINE_BYTES].decode(errors="replace").rstrip()
        text = _COLOUR.sub("", text) if "\x1b" in text else text
        for shown in self._printed.take(text, time.monotonic()):
            rank = self._ranks.get(shown.rank) or self._open(shown.rank)
            if rank is None:
                return
            rank.note(shown)

    def _open(self, number: int, *, again: bool = False) -> "_Rank | None":
        """Begin to write for a rank; a rank that writes itself ends the reading of all."""
        file = self._folder / f"heartbeat_rank{number}.jsonl"
        try:
            free = again or not file.exists()
            rank = _Rank(file, number, self._pid, self._order) if free else None
        except Taken:
            rank = None
        self._is_off = rank is None
        if rank is None:
            return None
        rank.boot(at=self._began, since=self._looked)
        with suppress(OSError):
            (self._folder / READ).touch()
        self._ranks[number] = rank
        return rank


class _Rank:
    """Writes the heartbeats of one rank.

    Raises:
        Taken: another process writes its file.
    """

    def __init__(self, file: Path, number: int, pid: int, order: Mapping[str, Any]) -> None:
        self.file, self._number, self._pid = LineFile(file), number, pid
        self._identity = {"run": order.get("run"), "attempt": order.get("attempt", 1)}
        self._boot, self._seq, self.step = "", 0, 0
        self.written_at = 0.0
        self._noted: list[tuple[int, dict[str, Any]]] = []
        self._last: dict[str, Any] = {}  # what was shown of the last step
        self._next: dict[str, Any] = {}  # what belongs to the next step

    def boot(self, *, at: float, since: float) -> None:
        """Write `boot` with the time `at`; the steps that follow came after `since`."""
        self._boot, self._seq, self.step = secrets.token_hex(8), 0, 0
        self._write("boot", 0, self._identity, at=at)
        self.written_at = since

    def note(self, shown: Shown) -> None:
        """Keep what a line shows until the next `flush`."""
        if shown.anew:
            self.flush()
            self.boot(at=self.written_at, since=self.written_at)
        if shown.step is not None:
            self.step, self._last, self._next = shown.step, {**self._next, **shown.fields}, {}
        elif is_lost(self._last) or ("loss" in self._last and not is_lost(shown.fields)):
            self._next = shown.fields
            return
        else:
            lost = {"loss": shown.fields["loss"]} if is_lost(shown.fields) else {}
            self._last = {**shown.fields, **self._last, **lost}
            del self._noted[-1:]
        self._noted.append((self.step, self._last))

    def flush(self) -> None:
        """Write what was noted, spaced evenly since the last line."""
        noted, self._noted, began = self._noted, [], self.written_at
        apart_s = (time.monotonic() - began) / len(noted) if noted else 0.0
        for number, (step, fields) in enumerate(noted, start=1):
            self._write("progress", step, fields, at=began + number * apart_s)

    def write(self, msg: str) -> None:
        """Write a line of now."""
        self._write(msg, self.step, {}, at=time.monotonic())

    def _write(self, msg: str, step: int, fields: Mapping[str, Any], *, at: float) -> None:
        self._seq, self.written_at = self._seq + 1, at
        line = build_line(
            msg,
            fields,
            pid=self._pid,
            rank=self._number,
            boot=self._boot,
            seq=self._seq,
            step=step,
            failures=self.file.failures,
            at=at,
        )
        self.file.append(line)


class LogLines:
    """The lines of a log."""

    def __init__(self, path: Path, begin: int) -> None:
        self._path, self._offset = path, begin
        self.rest = b""  # the last line, which has no end yet
        self._whole: list[bytes] = []  # lines not yet yielded, the last one first
        self.is_refused = False  # whether the disk refused the last read

    def lines(self) -> Iterator[bytes]:
        """Yield the new lines; a progress bar ends its lines with carriage returns."""
        while self._whole or (chunk := self._more()):
            if not self._whole:
                *whole, rest = (self.rest + chunk).replace(b"\r", b"\n").split(b"\n")
                self.rest = rest[:LINE_BYTES]
                self._whole = [line for line in reversed(whole) if line]
                continue
            yield self._whole.pop()

    def _more(self) -> bytes:
        try:
            with read_plain(self._path) as stream:
                stream.seek(self._offset)
                chunk = stream.read(_READ_BYTES)
        except OSError as error:
            self.is_refused = not isinstance(error, FileNotFoundError)
            return b""
        self.is_refused = False
        self._offset += len(chunk)
        return chunk
