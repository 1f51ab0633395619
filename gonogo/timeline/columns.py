"""What did one process of a rank say of each step? Numbers in columns, one row a step.

A run of 50 000 steps on eight ranks says more than a million lines: no line is kept. `lay` lays a
later process over an earlier one.
"""

import math
import sys
from array import array
from collections.abc import Iterator
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
"""In a column: no line reports this number."""
MOST_ROWS = 1024
"""Rows that a table grows by at most."""
_NAN = math.nan
_READ, _READ_SECTIONS = itemgetter(*NUMBERS), itemgetter(*SECTIONS)
_WIDE, _SECTIONS_WIDE = len(NUMBERS), len(SECTIONS)
_NO_NUMBERS, _NO_SECTIONS = array("d", (UNTOLD,) * _WIDE), array("d", (_NAN,) * _SECTIONS_WIDE)
_STARTED, _PROGRESSED, _ENDED, _SKIPPED = 1, 2, 4, 8
BITS = {Msg.STEP_START: _STARTED, Msg.PROGRESS: _PROGRESSED, Msg.STEP_END: _ENDED}


def _numbers_of(row: int) -> slice:
    """Return where the numbers of a row are."""
    return slice(row * _WIDE, (row + 1) * _WIDE)


def _sections_of(row: int) -> slice:
    """Return where the sections of a row are."""
    return slice(row * _SECTIONS_WIDE, (row + 1) * _SECTIONS_WIDE)


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
    tokens: "array[int]" = field(default_factory=lambda: array("q"))
    _numbers: "array[float]" = field(default_factory=lambda: array("d"))
    """`NUMBERS` of the first row, then those of the second: a line writes one place."""
    _sections: "array[float]" = field(default_factory=lambda: array("d"))
    """`SECTIONS` likewise."""

    def row_of(self, step: int) -> int:
        """Return the row of a step; a new one where it has none."""
        row = self.rows.get(step)
        if row is not None:
            return row
        row = self.rows[step] = len(self.rows)
        if row == len(self.told):
            more = min(MOST_ROWS, max(1, row))  # a column grows at once, for one by one is dear
            self.told.extend(bytes(more))
            self.boot.extend((0,) * more)
            self.tokens.extend((NEVER,) * more)
            self.start_mono.extend((_NAN,) * more)
            self.end_mono.extend((_NAN,) * more)
            self._numbers.extend(_NO_NUMBERS * more)
            self._sections.extend(_NO_SECTIONS * more)
        return row

    def take(self, beat: Heartbeat, bit: int, *, late: bool = False) -> None:
        """Take a line of a step.

        Args:
            beat: a `step_start`, `progress` or `step_end` line.
            bit: that stands for its message in `told`.
            late: whether a later line came before it: then it only fills what is missing.
        """
        row = self.row_of(beat.step)
        told = self.told[row]
        if late and told & bit:
            return
        if bit == _PROGRESSED:
            told = told & ~_SKIPPED if beat.skipped is not True else told | _SKIPPED
            numbers = [UNTOLD if value is None else value for value in _READ(vars(beat))]
            self._numbers[_numbers_of(row)] = array("d", numbers)
        elif bit == _STARTED:
            self.start_mono[row] = beat.mono
        else:
            self.end_mono[row] = beat.mono
            tokens, said = beat.tokens, beat.step_sections
            self.tokens[row] = NEVER if tokens is None else tokens
            seconds = _NO_SECTIONS if said is None else array("d", _READ_SECTIONS(vars(said)))
            self._sections[_sections_of(row)] = seconds
        self.told[row] = told | bit

    def numbers(self, name: str) -> "array[float]":
        """Return a number of all rows."""
        return self._numbers[NUMBERS.index(name) :: _WIDE]

    def sections(self) -> "list[array[float]]":
        """Return the seconds of each of `SECTIONS` in all rows."""
        return [self._sections[place::_SECTIONS_WIDE] for place in range(_SECTIONS_WIDE)]

    def lay(self, later: "StepTable", boot: int) -> None:
        """Lay the steps of a later process (number `boot`) over these: its lines count.

        If it made a step from start to end and reported no numbers, those of an earlier process do
        not count.
        """
        for step, there in later.rows.items():
            row = self.row_of(step)
            told, more = self.told[row], later.told[there]
            numbers, sections = _numbers_of(row), _sections_of(row)
            if more & _PROGRESSED:
                told = (told & ~_SKIPPED) | more
                self._numbers[numbers] = later._numbers[_numbers_of(there)]
            elif more & _STARTED and more & _ENDED:
                told &= ~(_PROGRESSED | _SKIPPED)
                self._numbers[numbers] = _NO_NUMBERS
            if more & _ENDED:
                self.end_mono[row], self.boot[row] = later.end_mono[there], boot
                self.tokens[row] = later.tokens[there]
                self._sections[sections] = later._sections[_sections_of(there)]
            if more & (_STARTED | _ENDED):
                self.start_mono[row] = later.start_mono[there] if more & _ENDED else _NAN
            self.told[row] = told | more

    def said(self, msg: Msg, step: int) -> bool:
        """Say whether a step delivered its `step_start`, `progress` or `step_end`."""
        row = self.rows.get(step)
        return row is not None and bool(self.told[row] & BITS[msg])

    def steps_of(self, msg: Msg) -> Iterator[tuple[int, int]]:
        """Yield (step, row) of every step that delivered `msg`, in the order of the steps."""
        told, bit = self.told, BITS[msg]
        return (place for place in sorted(self.rows.items()) if told[place[1]] & bit)

    def skipped(self) -> frozenset[int]:
        """Return the steps that the optimizer did not apply, as the rank reports."""
        return frozenset(step for step, row in self.rows.items() if self.told[row] & _SKIPPED)

    def samples(self, name: str) -> dict[int, float]:
        """Return step → a number of the progress lines that report it."""
        column = self.numbers(name)
        return {
            step: column[row] for step, row in sorted(self.rows.items()) if column[row] != UNTOLD
        }

    def tokens_told(self) -> dict[int, int]:
        """Return step → the tokens that its `step_end` line reports, in the order of the steps."""
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
            for step, row in sorted(self.rows.items())
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
