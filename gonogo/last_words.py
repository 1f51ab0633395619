"""What did a program say at its end? Its last error, without what launchers add; stdlib only.

Pure, on the end of a log. Several ranks may have written into one log: torch begins the lines of
an exception with `[rank1]: `, and torchrun, accelerate and their like end with a report of their
own, which tells of a rank and is none of its words. An error that a program survived ended
nothing: only the last one counts, and none that steps follow. Where nobody says whose words are
wanted, they are those of the rank that failed, not of who lost it and failed after it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gonogo.signs import OF_VICTIMS, signs_in

_OF_RANK = re.compile(r"(?:\[(?:rank|default)(\d+)\]: ?)+")
"""Once by torch in an exception, and before each line where torchrun tees what ranks print."""
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(r"(?:During handling of|The above exception was the direct cause)")
_REPORTED = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|SignalException): ?")
_PASSED_ON = re.compile(r"(?:subprocess\.)?CalledProcessError: Command ")
"""How a launcher's own traceback ends: by the failure of what it had started."""
_BANNER = re.compile(
    r"=+|-+|.* FAILED|Failures:|Root Cause .*|\[\d+\]:|  (?:time|host|rank|exitcode|error_file"
    r"|traceback) *:.*|  <NO_OTHER_FAILURES>|\s*"
)
_REMARK = re.compile(
    r"\[?[EWIF]\d{4} \d{2}:\d{2}:\d{2}\S* .*\b(?:elastic/|torch/distributed/run\.py:)"
)
"""Also its notice about OMP_NUM_THREADS, which is all there is where a script prints nothing."""
_STEP = re.compile(r"\b(?:step|iter|iteration)\b\W{0,3} {0,12}\d.{0,400}?\bloss\b", re.IGNORECASE)
"""Bounded as in `contract.patterns`: a line may be as long as a log's end, and hold its first word
thousands of times."""
_BAR = re.compile(r"\b(\d+)/(\d+) \[\d+:\d")
"""What a progress bar shows: how much of how much is done."""
_RULE = re.compile(r"\W*$")
FATAL = "Fatal Python error: "
"""How a dying interpreter begins to show its threads: what it says after that is no word of why."""
_MOST_STEPS_OF_PEERS = 2
"""That each of the others may still tell: it misses who failed at its next collective. More follow
only where a launcher has started it again. Told by several in one log, a step is one."""
_UNTOLD_LINES = 10
"""Of a log without a traceback that are taken for the words at the end."""


def log_rank(order: Mapping[str, Any], rank: int) -> int:
    """Return the rank whose log holds a rank's output: of a command the first of its node.

    Args:
        order: the order as data.
        rank: whose output.
    """
    if not order.get("command"):
        return rank
    each = int(order["world_size"]) // int(order.get("nodes") or 1)
    return rank - rank % max(1, each)


def own_lines(text: str, rank: int | None = None) -> list[str]:
    """Return the lines of a log without those of launchers, and of other ranks as far as told.

    Args:
        text: the end of a log.
        rank: whose words are wanted; where some lines say that they are its, only those. None:
            of the rank that failed first, where the lines tell which; else of all.
    """
    lines = _without_closed_bars(_without_report(text.splitlines()))
    whose = [int(said[1]) if (said := _OF_RANK.match(line)) else None for line in lines]
    plain = [_OF_RANK.sub("", line, count=1) for line in lines]
    wanted = _failed_first(plain, whose) if rank is None else rank
    if wanted is None:
        return plain
    mine = [line for line, said in zip(plain, whose, strict=True) if said == wanted]
    return mine or [line for line, said in zip(plain, whose, strict=True) if said is None]


def _failed_first(lines: Sequence[str], whose: Sequence[int | None]) -> int | None:
    """Return the rank whose uncaught error was the first and no word of a lost peer.

    Args:
        lines: without what says whose they are.
        whose: the rank that each says it is of.
    """
    found = ((at, line, _STEP.search(line)) for at, line in enumerate(lines))
    steps = [(at, line[: step.end()]) for at, line, step in found if step is not None]
    first: tuple[int, int] | None = None
    for rank in {said for said in whose if said is not None}:
        its = [at for at, said in enumerate(whose) if said == rank]
        begin = _begin_of_error([lines[at] for at in its])
        if begin is None:
            continue
        went_on = {(whose[at], step) for at, step in steps if at > its[begin]}
        if max(Counter(said for said, _ in went_on).values(), default=0) > _MOST_STEPS_OF_PEERS:
            continue
        error = "\n".join(lines[at] for at in its[begin:])
        if not signs_in(error) & OF_VICTIMS:
            first = min(first or (its[begin], rank), (its[begin], rank))
    return None if first is None else first[1]


def last_error(text: str, rank: int | None = None, steps: Sequence[re.Pattern[str]] = ()) -> str:
    """Return the error that a program ended with and those it came from; else its last lines.

    Args:
        text: the end of its log.
        rank: whose error is wanted.
        steps: how other lines that tell of a step look than `step 3: loss 2.5`: what stands before
            the last of them was survived.
    """
    lines = own_lines(text, rank)
    steps_at = [
        at for at, line in enumerate(lines) if any(row.search(line) for row in (_STEP, *steps))
    ]
    if steps_at:
        last = steps_at[-1]  # a bar ends in no new line: a traceback may begin behind it
        lines = lines[last if lines[last].endswith(_TRACEBACK) else last + 1 :]
    begin = _begin_of_error(lines)
    return "\n".join(_undumped(lines)[-_UNTOLD_LINES:] if begin is None else lines[begin:])


def _undumped(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines up to where a dying interpreter shows its threads."""
    ends = [at + 1 for at, line in enumerate(lines) if line.startswith(FATAL)]
    return lines[: ends[-1]] if ends else lines


def is_rule(line: str) -> bool:
    """Say whether a line holds no letter and no digit: a row of `====`."""
    return _RULE.match(line) is not None


def _begin_of_error(lines: Sequence[str]) -> int | None:
    """Return where the last traceback begins, or the first of those that are chained to it."""
    begins = [at for at, line in enumerate(lines) if line.strip().endswith(_TRACEBACK)]
    while len(begins) > 1 and any(map(_CHAINED.match, lines[begins[-2] : begins[-1]])):
        begins.pop()
    return begins[-1] if begins else None


def _without_closed_bars(lines: list[str]) -> list[str]:
    """Return a log without the bars that a program shows once more when an error has ended it.

    One that goes on behind the error is of a program that has survived it.
    """
    begin = _begin_of_error(lines)
    if begin is None:
        return lines
    shown: dict[str, set[str]] = {}
    for line in lines[begin + 1 :]:
        for done, whole in _BAR.findall(line):
            shown.setdefault(whole, set()).add(done)
    if any(len(states) > 1 for states in shown.values()):
        return lines
    return [line for at, line in enumerate(lines) if at <= begin or not _BAR.search(line)]


def _without_report(lines: list[str]) -> list[str]:
    """Return a log without the reports of launchers."""
    kept: list[str] = []
    begin: int | None = None
    """Where the last traceback stands in `kept`."""
    banner = False
    for line in lines:
        banner = banner and _BANNER.fullmatch(line) is not None
        if banner or _REMARK.match(line):
            continue
        if line.startswith(_TRACEBACK):
            begin = len(kept)
        kept.append(line)
        banner = _REPORTED.match(line) is not None
        passed_on = _PASSED_ON.match(line) and any(_TRACEBACK in row for row in kept[:begin])
        if begin is not None and (banner or passed_on):
            del kept[begin:]
            begin = None
    return kept
