"""What did one process of a rank say of each step? Numbers in columns, one row a step.

A run of 50 000 steps on eight ranks says more than a million lines: no line is kept. Within a
process the line with the higher `seq` counts, in whatever order lines come; `lay` lays a later
process over an earlier one.
"""

import math
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from gonogo.contract.heartbeat import Heartbeat, Msg

STEP_MESSAGES = (Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END)
"""What every step must bring, in this order (R13)."""

NUMBERS = (
    "loss",
    "grad_norm",
    "dt_fetch_s",
    "toks_per_s",
    "gpu_mem_alloc",
    "gpu_mem_reserved",
    "host_rss_mb",
    "gate_entropy",
    "comm_mb",
    "flash_share",
    "lr",
    "gate_max",
    "gate_collapse_frac",
)
"""Numbers of a progress line that are kept."""

SECTIONS = ("data", "forward", "backward", "optimizer", "wait")
NEVER = -1
_PROGRESS, _STEP_START = Msg.PROGRESS, Msg.STEP_START
MOST_ROWS = 1024
"""Rows that a table grows by at most."""
_NAN = math.nan
_READ, _READ_SECTIONS = attrgetter(*NUMBERS), attrgetter(*SECTIONS)
_UNTOLD = (_NAN,) * len(SECTIONS)
_BITS = {name: 1 << place for place, name in enumerate(NUMBERS)}


def _doubles() -> "array[float]":
    return array("d")


def _integers() -> "array[int]":
    return array("q")


@dataclass(slots=True, eq=False)
class StepTable:
    """The steps of one process, or of several laid over each other."""

    rows: dict[int, int] = field(default_factory=dict)
    """Step → row."""
    start_seq: "array[int]" = field(default_factory=_integers)
    progress_seq: "array[int]" = field(default_factory=_integers)
    end_seq: "array[int]" = field(default_factory=_integers)
    start_mono: "array[float]" = field(default_factory=_doubles)
    end_mono: "array[float]" = field(default_factory=_doubles)
    start_boot: "array[int]" = field(default_factory=_integers)
    end_boot: "array[int]" = field(default_factory=_integers)
    skipped: bytearray = field(default_factory=bytearray)
    told: "array[int]" = field(default_factory=lambda: array("H"))
    """Which of `NUMBERS` the progress line told, as bits."""
    numbers: "tuple[array[float], ...]" = field(
        default_factory=lambda: tuple(array("d") for _ in NUMBERS)
    )
    tokens: "array[int]" = field(default_factory=_integers)
    sections: "tuple[array[float], ...]" = field(
        default_factory=lambda: tuple(array("d") for _ in SECTIONS)
    )
    _highest: int = -1
    _ascend: bool = True
    """Whether the steps came in order, so that their rows are."""

    def new_row(self, step: int) -> int:
        """Return a new row for a step."""
        row = self.rows[step] = len(self.rows)
        if row == len(self.told):
            self._grow()
        if step < self._highest:
            self._ascend = False
        else:
            self._highest = step
        return row

    def _grow(self) -> None:
        """Make room for more rows: a column is extended at once, for one by one is dear."""
        more = min(MOST_ROWS, max(1, len(self.told)))
        for whole in (self.start_seq, self.progress_seq, self.end_seq, self.tokens):
            whole.extend((NEVER,) * more)
        for real in (self.start_mono, self.end_mono, *self.numbers, *self.sections):
            real.extend((_NAN,) * more)
        for small in (self.start_boot, self.end_boot, self.told):
            small.extend((0,) * more)
        self.skipped.extend(bytes(more))

    def take(self, beat: Heartbeat, row: int) -> None:
        """Take a `step_start`, `progress` or `step_end` line of the step with this row."""
        seq, msg = beat.seq, beat.msg
        if msg == _PROGRESS:
            if seq >= self.progress_seq[row]:
                self._take_progress(row, beat)
        elif msg == _STEP_START:
            if seq >= self.start_seq[row]:
                self.start_seq[row], self.start_mono[row] = seq, beat.mono
        elif seq >= self.end_seq[row]:
            self.end_seq[row], self.end_mono[row] = seq, beat.mono
            tokens, said = beat.tokens, beat.step_sections
            self.tokens[row] = NEVER if tokens is None else tokens
            seconds = _UNTOLD if said is None else _READ_SECTIONS(said)
            for value, column in zip(seconds, self.sections, strict=True):
                column[row] = value

    def _take_progress(self, row: int, beat: Heartbeat) -> None:
        self.progress_seq[row] = beat.seq
        self.skipped[row] = beat.skipped is True
        told, bit = 0, 1
        for value, column in zip(_READ(beat), self.numbers, strict=True):
            if value is not None:
                told |= bit
                column[row] = value
            bit <<= 1
        self.told[row] = told

    def lay(self, later: "StepTable", boot: int) -> None:
        """Lay the steps of a later process (number `boot`) over these: what it said counts.

        Numbers of a step that it made from start to end, and told none of, were another one's:
        they do not count.
        """
        for step, there in later.rows.items():
            row = self.rows[step] if step in self.rows else self.new_row(step)
            if later.start_seq[there] != NEVER:
                self.start_seq[row] = later.start_seq[there]
                self.start_mono[row] = later.start_mono[there]
                self.start_boot[row] = boot
            if later.progress_seq[there] != NEVER:
                self.progress_seq[row] = later.progress_seq[there]
                self.skipped[row], self.told[row] = later.skipped[there], later.told[there]
                for mine, its in zip(self.numbers, later.numbers, strict=True):
                    mine[row] = its[there]
            elif NEVER not in (later.start_seq[there], later.end_seq[there]):
                self.progress_seq[row], self.told[row] = NEVER, 0
            if later.end_seq[there] != NEVER:
                self.end_seq[row] = later.end_seq[there]
                self.end_mono[row] = later.end_mono[there]
                self.end_boot[row] = boot
                self.tokens[row] = later.tokens[there]
                for mine, its in zip(self.sections, later.sections, strict=True):
                    mine[row] = its[there]

    def said(self, msg: Msg, step: int) -> bool:
        """Say whether a step brought its `step_start`, `progress` or `step_end`."""
        row = self.rows.get(step)
        return row is not None and self._seq_of(msg)[row] != NEVER

    def steps_of(self, msg: Msg) -> Iterator[tuple[int, int]]:
        """Yield (step, row) of every step that brought `msg`, in the order of the steps."""
        column = self._seq_of(msg)
        for step, row in self._in_order():
            if column[row] != NEVER:
                yield step, row

    def _in_order(self) -> Collection[tuple[int, int]]:
        """Return (step, row) of every step in order; a sorted copy only where they need one."""
        return self.rows.items() if self._ascend else sorted(self.rows.items())

    def _seq_of(self, msg: Msg) -> "array[int]":
        if msg is Msg.STEP_START:
            return self.start_seq
        return self.progress_seq if msg is Msg.PROGRESS else self.end_seq

    def number(self, name: str, row: int) -> float | None:
        """Return a number of a progress line; None when it did not tell it."""
        place = NUMBERS.index(name)
        return self.numbers[place][row] if self.told[row] & _BITS[name] else None

    def samples(self, name: str) -> dict[int, float]:
        """Return step → a number of the progress lines that told it."""
        column, bit = self.numbers[NUMBERS.index(name)], _BITS[name]
        told = self.told
        return {step: column[row] for step, row in self._in_order() if told[row] & bit}

    def tokens_told(self) -> dict[int, int]:
        """Return step → the tokens that its `step_end` line told, in the order of the steps."""
        ended = self.steps_of(Msg.STEP_END)
        return {step: self.tokens[row] for step, row in ended if self.tokens[row] != NEVER}

    def step_times(self) -> dict[int, float]:
        """Return step → seconds between its `step_start` and `step_end`, by the rank's clock."""
        return {step: end - start for step, (start, end) in self.windows().items()}

    def windows(self) -> dict[int, tuple[float, float]]:
        """Return step → when it began and ended, of steps that one process took from end to end."""
        begun, ended = self.start_seq, self.end_seq
        start_boot, end_boot, starts, ends = (
            self.start_boot, self.end_boot, self.start_mono, self.end_mono,
        )  # fmt: skip
        return {
            step: (starts[row], ends[row])
            for step, row in self._in_order()
            if begun[row] != NEVER and ended[row] != NEVER
            if start_boot[row] == end_boot[row] and ends[row] > starts[row]
        }

    def gaps(self) -> dict[int, float]:
        """Return step → seconds since the end of the step before, where one process took both."""
        windows, found = self.windows(), {}
        for step, (start, _) in windows.items():
            before = windows.get(step - 1)
            if before is None:
                continue
            if self.start_boot[self.rows[step - 1]] == self.start_boot[self.rows[step]]:
                found[step] = max(0.0, start - before[1])
        return found
