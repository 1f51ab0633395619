"""Find the steps of a program in the lines that it prints. Pure: no files, the time is an argument.

A format is a regular expression with named groups `step loss lr grad_norm tokens toks_per_s rank`.
`PrintedSteps` keeps the most exact format and one `Count` a rank. docs/how-to/run.md says what
each kind of line is read as. Standard library only.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_RANKS = 1024
MOST_STEPS = 10**9  # A larger number is no step (a time stamp).
RECENT = 6
"""A more exact format that fits two of so many lines takes over; rarer lines are remarks."""
LEAP_X = 10  # A number so many strides ahead may be a remark (`will save at step 300`).
TOGETHER_S = 30.0
"""Ranks print the same step within this time. A repeated number after it is movement."""
ZEROS = 3
"""Lines in a row with loss 0 and a norm that is not finite: mixed precision skips one or two."""
_NUMBERS = ("loss", "lr", "grad_norm", "toks_per_s", "tokens")
_LENGTH = re.compile(
    r"(?:\.0+)?(it)? {0,8}(?:/|of) {0,8}(\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.0+)?(?:it)?"
    r"(?![\d/]|\.\d)( \[)?"
)
"""The total behind a number, and the sign of a progress bar, which counts what is done."""
_BAR = re.compile(r"^.{0,400}?\d/\d+ \[\d+:\d[^\]]{0,400}\](?=[\w\[{(])")
"""A bar of tqdm in front of another text on its line."""
_UNDIVIDED = str.maketrans("", "", ",_")
_DIVIDED = re.compile(r"[-+]?[1-9]\d{0,2}(?:[,_]\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")


class Doubt(StrEnum):
    """Why nobody knows whether the last number that was read is the program's last step."""

    NO_NUMBER = "no_number"  # lines were counted
    WENT_BACK = "went_back"  # epochs, a restart, or a second program
    OTHER_TOTAL = "other_total"  # the lines count to another number than the ordered one
    UNCLEAR_LAST = "unclear_last"  # it may be a remark, lies far beyond, or no line was due


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a line shows of one rank."""

    rank: int
    step: int | None  # None: more about the last one
    fields: dict[str, Any]
    anew: bool = False  # whether the steps before it were none


class Count:
    """Turns the numbers of one format and one rank into steps."""

    def __init__(self) -> None:
        self.step = self._base = self._stride = 0
        self.last: int | None = None  # The largest number.
        self.doubt: Doubt | None = None
        self.total: int | None = None  # The total that its lines print: 80 in `8/80`.
        self._leapt = False
        self._late: int | None = None  # The newest number, if it is smaller than the largest.
        self._newest: tuple[int, str | None] = (0, None)
        self._at = 0.0  # When the largest number came.

    def take(
        self, number: int, total: int | None, mark: str | None, now: float, *, bar: bool
    ) -> bool:
        """Take a number; return whether a further step has ended.

        Args:
            number: as printed.
            total: the number behind it (`8/80`).
            mark: a value that only a new step changes (its loss); None: the line has none.
            bar: whether it is the number of steps that are done, 0 at first.
        """
        before, self._newest = self._newest, (number, mark)
        first = self.last is None
        if first and bar and number == 0:
            return False
        last = self.last or 0
        if first:
            self._base, self.total = int(number == 0), total
        elif total != self.total:
            self.doubt = self.doubt or Doubt.OTHER_TOTAL
        if first or (self.doubt is None and number > last):
            usual = self._stride or last or 1  # a first number may be a stride
            self._leapt = total is None and number - last > LEAP_X * usual
            self._stride = 0 if first else max(self._stride, number - last)
            self.last, self.step, self._late = number, self._base + number, None
            self._at = now
            return True
        # A bar that hangs, or a thread, may show the last line again and again.
        moves = number != before[0] or not (bar or mark in (None, before[1]))
        if self.doubt is None and not self._goes_back(number, now, moves=moves):
            return False
        self.doubt = self.doubt or Doubt.WENT_BACK
        ahead = number - before[0] if number > before[0] else number
        self.step += moves * max(1, min(ahead, self._stride or 1))
        return moves

    def take_line(self, text: str) -> bool:
        """Take a line without a number; return whether it is another than the last one."""
        before, self._newest = self._newest, (0, text)
        self.doubt, moved = Doubt.NO_NUMBER, self._newest != before
        self.step += moved
        return moved

    def end(self, steps: int | None) -> Doubt | None:
        """Return why the last step may not be the program's last; None: it is, early or not."""
        if self.doubt is not None:
            return self.doubt
        if steps is not None and self.total not in (None, steps):
            return Doubt.OTHER_TOTAL
        whole = steps is None or steps <= self.step <= steps + max(self._stride, 1)
        early = steps is not None and 0 < self._stride <= steps - self.step
        known = self.step and (whole or early) and not self._leapt and self._late is None
        return None if known else Doubt.UNCLEAR_LAST

    def _goes_back(self, number: int, now: float, *, moves: bool) -> bool:
        """Whether a number that is not larger begins a new count: no rank is just late."""
        last, late = self.last or 0, self._late
        self._late = number if number < last else None
        again = late is not None and late < number < last
        return again or (moves and now - self._at > TOGETHER_S)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A format that fits a line."""

    match: re.Match[str]
    exactness: tuple[int, int]
    """A number of the ordered total before other numbers before none; then the order of formats."""
    number: int | None
    total: int | None
    bar: bool


class PrintedSteps:
    """Reads steps from lines."""

    def __init__(
        self, patterns: Sequence[str], steps: int | None, *, guessed: bool, rank: int = 0
    ) -> None:
        self._rank = rank
        self._patterns = [re.compile(text) for text in patterns]
        numbered = [at for at, row in enumerate(self._patterns) if "step" in row.groupindex]
        self._parts = set(numbered if guessed else range(len(patterns)) if numbered else ())
        """Formats whose lines without a number are never counted."""
        self._steps, self._guessed = steps, guessed
        ends = () if steps is None else dict.fromkeys((f"{steps}", f"{steps:,}", f"{steps:_}"))
        self._totals = tuple(f"{sign}{end}" for end in ends for sign in ("/", "/ ", "of "))
        self._kept: tuple[int, int] | None = None
        self._recent = deque[tuple[int, int]](maxlen=RECENT)
        self._counts: dict[tuple[tuple[int, int] | None, int], Count] = {}  # By format and rank.
        self._shown: dict[int, tuple[int, int]] = {}  # The format of the last step of each rank.
        self._zeros: dict[int, int] = {}

    def take(self, text: str, now: float) -> Iterator[Shown]:
        """Take a line without its end, at `now` seconds on a steady clock; yield what it shows."""
        if self._guessed and (bar := _BAR.match(text)) is not None:
            yield from self._take(bar[0], now)
            text = text[bar.end() :]
        yield from self._take(text, now)

    def count(self, rank: int) -> Count:
        """Return the count of a rank by the kept format; an empty one where nothing was read."""
        return self._counts.get((self._kept, rank)) or Count()

    def doubt(self, rank: int) -> Doubt | None:
        """Return why nobody knows whether the last step read of a rank is its last; else None."""
        return self.count(rank).end(self._steps)

    def _take(self, text: str, now: float) -> Iterator[Shown]:
        for hit in self._hits(text):
            fields = self._fields(hit.match)
            named = whole_number(hit.match.groupdict().get("rank"))
            rank = self._rank if named is None else named
            if 0 <= rank < MOST_RANKS:
                self._find_lost_zero(rank, fields)
                yield from self._show(hit, rank, fields, now)

    def _hits(self, text: str) -> list[_Hit]:
        found: list[_Hit] = []
        kept = self._kept or (2, -1)
        seeks_run = any(word in text for word in self._totals)
        for index, pattern in enumerate(self._patterns):
            if found and not seeks_run and index != kept[1]:
                continue
            if (match := pattern.search(text)) is not None:
                found.append(self._hit(match, index))
                seeks_run = seeks_run and found[-1].exactness[0] > 0
        best = min((hit.exactness for hit in found), default=None)
        return [hit for hit in found if hit.exactness in (best, kept)]

    def _hit(self, match: re.Match[str], index: int) -> _Hit:
        number = whole_number(match.groupdict().get("step"))
        if number is None or number > MOST_STEPS:
            return _Hit(match, (2, index), None, None, bar=False)
        length = _LENGTH.match(match.string, match.end("step"))
        total = None if length is None else whole_number(length[2])
        is_run = total is not None and total == self._steps
        bar = length is not None and (length[1] or length[3]) is not None
        return _Hit(match, (0 if is_run else 1, index), number, total, bar=bar)

    def _fields(self, match: re.Match[str]) -> dict[str, Any]:
        found = match.groupdict()
        told = {name: float_number(found.get(name)) for name in _NUMBERS}
        return {name: seen for name, seen in told.items() if seen is not None}

    def _show(self, hit: _Hit, rank: int, fields: dict[str, Any], now: float) -> Iterator[Shown]:
        kind, number, ended = hit.exactness, hit.number, False
        if number is not None or kind[1] not in self._parts:
            count = self._counts.setdefault((kind, rank), Count())
            if number is None:
                ended = count.take_line(hit.match.string)
            else:
                told = [fields[name] for name in ("loss", "grad_norm") if name in fields]
                ended = count.take(number, hit.total, str(told) if told else None, now, bar=hit.bar)
            self._keep(kind)
        count = self.count(rank)
        if kind == self._kept and ended:
            anew = self._shown.get(rank, kind) != kind
            self._shown[rank] = kind
            yield Shown(rank=rank, step=count.step, fields=fields, anew=anew)
            return
        if kind == self._kept:
            adds = is_lost(fields)
        else:
            near = count.last is not None and number in (None, count.last, count.last - 1)
            adds = "loss" in fields and near and hit.total in (None, self._steps)
        if adds and rank in self._shown:
            yield Shown(rank=rank, step=None, fields=fields)

    def _keep(self, kind: tuple[int, int]) -> None:
        self._recent.append(kind)
        again = kind[0] == 0 or self._recent.count(kind) > 1
        if self._kept is None or (kind < self._kept and again):
            self._kept = kind

    def _find_lost_zero(self, rank: int, fields: dict[str, Any]) -> None:
        """Make the loss NaN where several lines in a row show 0 and a norm that is not finite."""
        if "loss" in fields and "grad_norm" in fields:
            bad = fields["loss"] == 0 and not math.isfinite(fields["grad_norm"])
            self._zeros[rank] = self._zeros.get(rank, 0) + 1 if bad else 0
            if self._zeros[rank] >= ZEROS:
                fields["loss"] = math.nan


def is_lost(fields: Mapping[str, Any]) -> bool:
    """Say whether a loss is not finite."""
    return not math.isfinite(fields.get("loss") or 0.0)


def whole_number(text: str | None) -> int | None:
    """Return a whole number as printed (`1,000`); None for anything else."""
    try:
        return None if text is None else int(text.translate(_UNDIVIDED))
    except ValueError:
        return None


def float_number(text: str | None) -> float | None:
    """Return a number as printed (`nan.`, `2.5]`); None for `2,31`, which has two readings."""
    try:
        bare = (text or "").rstrip(".,;:)]}%'\"").lstrip(",;:)]}%'\"")
        if not bare or (("," in bare or "_" in bare) and _DIVIDED.fullmatch(bare) is None):
            return None
        return float(bare.translate(_UNDIVIDED))
    except ValueError:
        return None
