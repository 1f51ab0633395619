"""What does a program's output tell of its steps? For a program that knows nothing of gonogo.

The wrapper reads the log that the program writes, and says in the rank's heartbeat file what a
pattern finds: `progress` for each step that is new, `alive` while the program lives, `done` when it
has left with 0. Nothing stands between program and log: a reader that is slow, or dies, holds
nobody up. What no line tells (who runs, sections, when a step began) is not said.

A pattern is a regular expression with named groups `step loss lr grad_norm tokens toks_per_s rank`.
Without the group `step` each match is the next step. Where the first step told is 0, one is added
to all: steps count from 1 here. A program that says its heartbeats itself is left alone.

Lines that come together (the reader looks now and then, and many programs write in blocks) are
taken to have come at equal distances since the last one: when each of them was printed nobody can
know, and steps that last no time at all would be worse. Standard library only.
"""

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.trainer.line import build_line
from gonogo.trainer.line_file import LineFile, Taken

GROUPS = frozenset(("step", "loss", "lr", "grad_norm", "tokens", "toks_per_s", "rank"))
MOST_RANKS = 1024
MOST_STEPS = 10**9
"""A number beyond is no step, and would hide all that follow."""
_NUMBERS = GROUPS - {"step", "rank", "tokens"}
_LINE_BYTES = 16_384
_READ_BYTES = 2**20
_END = re.compile(rb"[\r\n]")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OutputLines:
    """Reads one program's log and says what it tells.

    Args:
        folder: the run directory.
        order: the order as data: `patterns` (of guessed ones the first that fits is kept), `run`,
            `attempt`, `heartbeat`.
        log: the file that the program writes.
        pid: of the program.
    """

    def __init__(self, folder: Path, order: Mapping[str, Any], log: Path, pid: int) -> None:
        self._folder, self._order, self._log, self._pid = folder, order, log, pid
        self._patterns = [re.compile(text) for text in order.get("patterns") or ()]
        cadence = order.get("heartbeat") or {}
        self._alive_every_s = float(cadence.get("alive_every_s") or 5.0)
        self._ranks: dict[int, _Rank] = {}
        self._offset = log.stat().st_size if log.exists() else 0
        self._rest = b""
        self._shift: int | None = None
        self._looked = time.monotonic()

    def read(self) -> None:
        """Say what has been written since the last call, and who has been silent for long."""
        if not self._patterns:
            return
        for text in self._lines():
            self._tell(text)
        self._looked = time.monotonic()
        for rank in self._ranks.values():
            rank.flush()
            rank.break_silence(self._alive_every_s)

    def close(self, code: int, *, asked: bool) -> None:
        """Say the rest, and `done` where the program left with 0 and nobody had asked it to.

        Args:
            code: exit code, or minus the signal.
            asked: whether the run was asked to end.
        """
        self.read()
        if self._rest:
            self._tell(_decoded(self._rest))
        for rank in self._ranks.values():
            rank.flush()
            if code == 0 and not asked:
                rank.say("done")
            rank.close()

    def _lines(self) -> Iterator[str]:
        """Yield the lines that are new; a progress bar ends its lines with carriage returns."""
        while chunk := self._more():
            *whole, self._rest = _END.split(self._rest + chunk)
            self._rest = self._rest[-_LINE_BYTES:]
            for line in whole:
                if line:
                    yield _decoded(line)

    def _more(self) -> bytes:
        try:
            with self._log.open("rb") as stream:
                stream.seek(self._offset)
                chunk = stream.read(_READ_BYTES)
        except OSError:
            return b""
        self._offset += len(chunk)
        return chunk

    def _tell(self, text: str) -> None:
        for pattern in self._patterns:
            match = pattern.search(text)
            if match is not None:
                if self._order.get("patterns_guessed"):
                    self._patterns = [pattern]
                self._say(match.groupdict())
                return

    def _say(self, found: Mapping[str, str | None]) -> None:
        number = _whole(found.get("rank")) or 0
        if not 0 <= number < MOST_RANKS:
            return
        rank = self._ranks.get(number) or self._open(number)
        if rank is None:
            return
        step = _whole(found.get("step")) if "step" in found else rank.step + 1 - (self._shift or 0)
        if step is None:
            return
        if self._shift is None:
            self._shift = 1 if step == 0 else 0
        if rank.step < step + self._shift <= MOST_STEPS:
            rank.step = step + self._shift
            told: dict[str, Any] = {name: _number(found.get(name)) for name in _NUMBERS}
            told["tokens"] = _whole(found.get("tokens"))
            rank.note({name: seen for name, seen in told.items() if seen is not None})

    def _open(self, number: int) -> "_Rank | None":
        """Begin to speak for a rank, unless it speaks for itself: then never again for any."""
        file = self._folder / f"heartbeat_rank{number}.jsonl"
        if file.exists():
            self._patterns = []
            return None
        try:
            rank = _Rank(file, number, self._pid, self._looked)
        except Taken:
            self._patterns = []
            return None
        rank.say("boot", run=self._order.get("run"), attempt=self._order.get("attempt", 1))
        self._ranks[number] = rank
        return rank


class _Rank:
    """The lines of one rank."""

    def __init__(self, file: Path, number: int, pid: int, since: float) -> None:
        self._file, self._number, self._pid = LineFile(file), number, pid
        self._boot, self._seq = secrets.token_hex(8), 0
        self._spoke = since
        self._noted: list[tuple[int, dict[str, Any]]] = []
        self.step = 0

    def note(self, fields: dict[str, Any]) -> None:
        """Keep a step that has ended since the last look."""
        self._noted.append((self.step, fields))

    def flush(self) -> None:
        """Say what was noted, at equal distances since the last line."""
        noted, self._noted = self._noted, []
        began = self._spoke
        apart_s = (time.monotonic() - began) / len(noted) if noted else 0.0
        for number, (step, fields) in enumerate(noted, start=1):
            self._say("progress", step, fields, at=began + number * apart_s)

    def say(self, msg: str, **fields: Any) -> None:
        """Say something of now; a boot line is of before all that was noted."""
        at = self._spoke if msg == "boot" else time.monotonic()
        self._say(msg, self.step, fields, at=at)

    def _say(self, msg: str, step: int, fields: Mapping[str, Any], *, at: float) -> None:
        self._seq += 1
        self._spoke = at
        self._file.append(
            build_line(
                msg,
                fields,
                pid=self._pid,
                rank=self._number,
                boot=self._boot,
                seq=self._seq,
                step=step,
                failures=self._file.failures,
                ago_s=time.monotonic() - at,
            )
        )

    def break_silence(self, after_s: float) -> None:
        if time.monotonic() - self._spoke >= after_s:
            self.say("alive")

    def close(self) -> None:
        self._file.close()


def check_patterns(patterns: Sequence[str]) -> str | None:
    """Return what is wrong with the first pattern that cannot be used; None when all can."""
    for text in patterns:
        try:
            groups = re.compile(text).groupindex.keys()
        except re.error as error:
            return f"pattern {text!r}: {error}"
        if unknown := sorted(groups - GROUPS):
            known = ", ".join(sorted(GROUPS))
            return f"pattern {text!r}: found group {unknown[0]!r}; expected one of {known}"
        if not groups & {"step", "loss"}:
            return f"pattern {text!r}: it names neither (?P<step>…) nor (?P<loss>…)"
    return None


def _decoded(line: bytes) -> str:
    return _COLOUR.sub("", line[-_LINE_BYTES:].decode(errors="replace")).rstrip()


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
