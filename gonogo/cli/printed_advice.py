"""Say what makes the lines of a program readable: an option that fits the lines that were seen.

Pure: an order, and what the program printed.
"""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from gonogo.contract.order import Order
from gonogo.contract.patterns import PATTERNS, fitting
from gonogo.supervise.launch.printed_steps import Doubt, PrintedSteps, float_number
from gonogo.supervise.processes import SHELLS

MOST_SHOWN = 60
"""Characters of a line that are shown."""
_LEAST_LINES = 3
"""So many lines of one shape with a growing number are steps."""
_BEFORE = 24
"""Characters before a number that a suggested pattern names."""
_ANY_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?")
_WHOLE = re.compile(r"(?<![\w.:/,-])\d{1,9}(?![\w:%]|[.,-]\d)")
"""A number that may be a step: no part of a date, a time, a duration or a decimal."""
_LOSS = re.compile(r"(?i)(?:loss|cost|error)[\w/]*\W{1,4}(?=[\d.+-]|nan|inf)")
_TOTAL = re.compile(r"(?<![\d.])\d+/(\d+) \[\d+:\d")


def advise_unread(order: Order, lines: Sequence[str]) -> list[str]:
    """Return what would read a program of which no step was read.

    Args:
        order: what was run.
        lines: what the program printed, the newest last.
    """
    if not order.patterns_guessed:
        return ["no line of its output (rank0.log) fits --pattern: correct it, or leave it out"]
    totals = [int(found[1]) for line in lines if (found := _TOTAL.search(line)) is not None]
    if order.steps is None and totals:
        return [
            f"a bar in its output counts to {totals[-1]}: --steps {totals[-1]} reads it, if that"
            " is the whole run"
        ]
    if fits := [name for name in fitting(lines) if name == "tqdm"]:
        return [
            "no pattern that was tried fits a line of its output, but --pattern"
            f" {fits[0]} does: run it with that, or attach it"
        ]
    if (shape := suggest(lines)) is not None:
        line, pattern = shape
        return [f"lines like `{line[:MOST_SHOWN]}` were seen; --pattern '{pattern}' reads them"]
    return [
        "no line of its output fits a pattern: give one"
        r" (--pattern 'iter (?P<step>\d+): loss (?P<loss>\S+)'), or attach it"
        " (docs/how-to/attach.md)"
    ]


def suggest(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return a line with a number that grows from line to line, and a pattern that reads it.

    Args:
        lines: what the program printed.

    Returns:
        The line and the pattern; None where no shape of line has such a number.
    """
    shapes: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        shapes[_ANY_NUMBER.sub("#", line)[:200]].append(line)
    for alike in sorted(shapes.values(), key=len, reverse=True):
        if len(alike) < _LEAST_LINES or "'" in alike[-1]:
            continue
        found = [list(_WHOLE.finditer(line)) for line in alike]
        for place in range(min(map(len, found))):
            numbers = [int(row[place][0]) for row in found]
            if all(before < after for before, after in pairwise(numbers)):
                return alike[-1], _pattern_of(alike[-1], found[-1][place])
    return None


def _pattern_of(line: str, step: re.Match[str]) -> str:
    before = line[max(0, step.start() - _BEFORE) : step.start()]
    words = re.sub(r"^[^\w\[(<]+", "", _ANY_NUMBER.split(before)[-1])
    pattern = ("" if words else "^ *") + _escaped(words) + r"(?P<step>\d+)"
    loss = _LOSS.search(line, step.end())
    return pattern if loss is None else rf"{pattern}.*?{_escaped(loss[0])}(?P<loss>\S+)"


def _escaped(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")


def advise_end(order: Order, lines: Sequence[str], last: int) -> list[str]:
    """Return what keeps the end of a program open whose steps were read.

    Args:
        order: what was run; it names the steps.
        lines: what the program printed.
        last: the last step that was read.
    """
    steps = order.steps
    printed = PrintedSteps(order.patterns, steps, guessed=order.patterns_guessed)
    for line in lines:
        for _ in printed.take(line, 0.0):
            pass
    remedy = r"give a --pattern for a number that counts the whole run, or attach it"
    match printed.doubt(0):
        case Doubt.NO_NUMBER:
            return [
                "its lines show no step and were counted: that shows that it moves, not that it is"
                f" complete; {remedy}"
            ]
        case Doubt.WENT_BACK:
            return [f"a number in its lines went back (epochs, or a restart): {remedy}"]
        case Doubt.OTHER_TOTAL:
            return [
                f"its lines count to {printed.count(0).total}, and {steps} steps were ordered:"
                f" correct --steps, or {remedy}"
            ]
        case Doubt.FAILED:
            return ["its last step was read, and an error behind it (rank0.log)"]
    if steps is not None and last < steps:
        return [
            f"step {last} was the last that was read from its lines, of {steps}: print every"
            f" step, attach it, or say --steps {last} where that is a whole run"
        ]
    if order.command and os.path.basename(order.command[0]) in SHELLS:
        return ["nobody but the shell saw how the program ended: write exec before its command"]
    return []


def advise_loss(order: Order, lines: Sequence[str]) -> list[str]:
    """Return what the pattern found in the place of the losses, where none of it is a number.

    Args:
        order: what was run; of bundled patterns nothing is said.
        lines: what the program printed.
    """
    if order.patterns_guessed:
        return []
    known = PATTERNS.values()
    rows = [re.compile(text) for text in order.patterns if text not in known]
    hits = [row.search(line) for row in rows if "loss" in row.groupindex for line in lines]
    found = [hit["loss"] for hit in hits if hit is not None and hit["loss"] is not None]
    if not found or any(float_number(text) is not None for text in found):
        return []
    return [
        f"no loss was read, and none is watched: what (?P<loss>…) finds is no number, but"
        f" {found[0][:40]!r}; correct --pattern: (?P<loss>\\S+)"
    ]
