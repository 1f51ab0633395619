"""What did one process of a rank say of each step? Numbers in columns, one row a step.

A run of 50 000 steps on eight ranks says more than a million lines: no line is kept. `lay` lays a
later process over an earlier one.
"""

import math
import sys
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

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
UNTOLD = -sys.float_info.max
"""In a column: no line told this number."""
MOST_ROWS = 1024
"""Rows that a table grows by at most."""
_NAN = math.nan
_READ, _READ_SECTIONS = itemgetter(*NUMBERS), itemgetter(*SECTIONS)
_NO_SECTIONS = (_NAN,) * len(SECTIONS)
_STARTED, _PROGRESSED, _ENDED, _SKIPPED = 1, 2, 4, 8
BITS = {Msg.STEP_START: _STARTED, Msg.PROGRESS: _PROGRESSED, Msg.STEP_END: _ENDED}


@dataclass(slots=True, eq=False)
class StepTable:
    """The steps of one process, or of several laid over each other."""

    rows: dict[int, int] = field(default_factory=dict)
    """Step → row."""
    told: bytearray = field(default_factory=bytearray)
    """Which of `STEP_MESSAGES` came, and whether the optimizer skipped the step, as bits."""
    start_mono: "array[float]" = field(default_factory=lambda: array("d"))
    """When the process that ended the step began it; NaN where another one began it."""
    end_mono: "array[float]" = field(default_factory=lambda: array("d"))
    boot: "array[int]" = field(default_factory=lambda: array("q"))
    """Number of the process that ended the step."""
    numbers: "tuple[array[float], ...]" = field(
        default_factory=lambda: tuple(array("d") for _ in NUMBERS)
    )
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
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
            more = min(MOST_ROWS, max(1, row))  # a column grows at once, for one by one is dear
            self.told.extend(bytes(more))
            self.boot.extend((0,) * more)
            self.tokens.extend((NEVER,) * more)
            for clock in (self.start_mono, self.end_mono, *self.sections):
                clock.extend((_NAN,) * more)
            for number in self.numbers:
                number.extend((UNTOLD,) * more)
        if step < self._highest:
            self._ascend = False
        else:
            self._highest = step
        return row

    def take(self, beat: Heartbeat, bit: int, *, late: bool = False) -> None:
        """Take a line of a step.

        Args:
            beat: a `step_start`, `progress` or `step_end` line.
            bit: that stands for its message in `told`.
            late: whether a later line came before it: then it only fills what is missing.
        """
        row = self.rows.get(beat.step)
        if row is None:
            row = self.new_row(beat.step)
        told = self.told[row]
        if late and told & bit:
            return
        if bit == _PROGRESSED:
            if told & bit:
                self._forget(row)
            told = told & ~_SKIPPED if beat.skipped is not True else told | _SKIPPED
            for value, column in zip(_READ(vars(beat)), self.numbers, strict=True):
                if value is not None:
                    column[row] = value
        elif bit == _STARTED:
            self.start_mono[row] = beat.mono
        else:
            self.end_mono[row] = beat.mono
            tokens, said = beat.tokens, beat.step_sections
            self.tokens[row] = NEVER if tokens is None else tokens
            seconds = _NO_SECTIONS if said is None else _READ_SECTIONS(vars(said))
            for value, column in zip(seconds, self.sections, strict=True):
                column[row] = value
        self.told[row] = told | bit

    def _forget(self, row: int) -> None:
        """Forget the numbers that were told of a step."""
        for column in self.numbers:
            column[row] = UNTOLD

    def lay(self, later: "StepTable", boot: int) -> None:
        """Lay the steps of a later process (number `boot`) over these: what it said counts.

        Numbers of a step that it made from start to end, and told none of, were another one's:
        they do not count.
        """
        for step, there in later.rows.items():
            row = self.rows[step] if step in self.rows else self.new_row(step)
            told, more = self.told[row], later.told[there]
            if more & _PROGRESSED:
                told = (told & ~_SKIPPED) | more
                for mine, its in zip(self.numbers, later.numbers, strict=True):
                    mine[row] = its[there]
            elif more & _STARTED and more & _ENDED:
                told &= ~(_PROGRESSED | _SKIPPED)
                self._forget(row)
            if more & _ENDED:
                self.end_mono[row], self.boot[row] = later.end_mono[there], boot
                self.tokens[row] = later.tokens[there]
                for mine, its in zip(self.sections, later.sections, strict=True):
                    mine[row] = its[there]
            if more & (_STARTED | _ENDED):
                self.start_mono[row] = later.start_mono[there] if more & _ENDED else _NAN
            self.told[row] = told | more

    def said(self, msg: Msg, step: int) -> bool:
        """Say whether a step brought its `step_start`, `progress` or `step_end`."""
        row = self.rows.get(step)
        return row is not None and bool(self.told[row] & BITS[msg])

    def steps_of(self, msg: Msg) -> Iterator[tuple[int, int]]:
        """Yield (step, row) of every step that brought `msg`, in the order of the steps."""
        told, bit = self.told, BITS[msg]
        return (place for place in self._in_order() if told[place[1]] & bit)

    def _in_order(self) -> Collection[tuple[int, int]]:
        """Return (step, row) of every step in order; a sorted copy only where they need one."""
        return self.rows.items() if self._ascend else sorted(self.rows.items())

    def skipped(self) -> frozenset[int]:
        """Return the steps that the optimizer did not apply, as the rank reports."""
        return frozenset(step for step, row in self.rows.items() if self.told[row] & _SKIPPED)

    def samples(self, name: str) -> dict[int, float]:
        """Return step → a number of the progress lines that told it."""
        column = self.numbers[NUMBERS.index(name)]
        return {step: column[row] for step, row in self._in_order() if column[row] != UNTOLD}

    def tokens_told(self) -> dict[int, int]:
        """Return step → the tokens that its `step_end` line told, in the order of the steps."""
        ended = self.steps_of(Msg.STEP_END)
        return {step: self.tokens[row] for step, row in ended if self.tokens[row] != NEVER}

    def step_times(self) -> dict[int, float]:
        """Return step → seconds between its `step_start` and `step_end`, by the rank's clock."""
        return {step: end - start for step, (start, end) in self.windows().items()}

    def windows(self) -> dict[int, tuple[float, float]]:
        """Return step → when it began and ended, of steps that one process took from end to end."""
        starts, ends = self.start_mono, self.end_mono
        return {
            step: (starts[row], ends[row])
            for step, row in self._in_order()
            if ends[row] > starts[row]
        }

    def gaps(self) -> dict[int, float]:
        """Return step → seconds since the end of the step before, where one process took both."""
        windows, rows, boot, found = self.windows(), self.rows, self.boot, dict[int, float]()
        for step, (start, _) in windows.items():
            before = windows.get(step - 1)
            if before is not None and boot[rows[step - 1]] == boot[rows[step]]:
                found[step] = max(0.0, start - before[1])
        return found
