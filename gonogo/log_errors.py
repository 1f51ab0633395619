"""Find the error with which a program ended, in the end of its log. Standard library only.

All functions are pure. `error_lines` returns the lines that name the failure, the most important
first. `last_error` returns the whole text of the last error.

- Several ranks may write into one log. torch begins the lines of an exception with `[rank1]: `.
  The rank that failed first counts. A rank that only lost a peer does not count.
- torchrun, accelerate and other launchers end with a report of their own. The report is left out.
- An error before the last step was survived and does not count.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, islice
from typing import Any

SIGNS: dict[str, re.Pattern[str]] = {
    "out_of_memory": re.compile(
        r"out of memory|OutOfMemoryError|^[\w.]*MemoryError\b|can(?:'|no)t allocate memory"
        r"|std::bad_alloc",
        re.I | re.M,
    ),
    "no_space": re.compile(
        r"No space left on device|\bENOSPC\b|Disk quota exceeded"
        r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing",
        re.I,
    ),
    "peer_lost": re.compile(
        r"gloo/.{0,120}(?:closed|reset) by peer|remote worker (?:crashing|hanging)"
        r"|ncclRemoteError|remote process exit",
        re.I,
    ),
}
"""Texts that decide how a run is recorded to have ended; failures.yaml names all other failures."""
OF_VICTIMS = frozenset({"peer_lost"})
"""Signs of a rank that lost a peer: a cause only if the rank that failed first shows them."""

_VICTIM = re.compile(
    f"{SIGNS['peer_lost'].pattern}|Watchdog caught|collective operation timeout"
    r"|Timed out waiting \d{1,12} ?ms for",
    re.IGNORECASE,
)
"""The words of a rank that waited for another: another rank failed, if any says so."""
_OF_RANK = re.compile(r"(?:\[(?:rank|default)(\d+)\]: ?)+")
"""Written by torch before exceptions, and by torchrun before each line of a rank."""
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(r"(?:During handling of|The above exception was the direct cause)")
_REPORTED = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|SignalException): ?")
_PASSED_ON = re.compile(r"(?:subprocess\.)?CalledProcessError: Command ")
_BANNER = re.compile(
    r"=+|-+|.* FAILED|Failures:|Root Cause .*|\[\d+\]:|  (?:time|host|rank|exitcode|error_file"
    r"|traceback) *:.*|  <NO_OTHER_FAILURES>|\s*"
)
_REMARK = re.compile(
    r"\[?[EWIF]\d{4} \d{2}:\d{2}:\d{2}\S* .*\b(?:elastic/|torch/distributed/run\.py:"
    r"|Utils\.hpp:\d+\] Warning: Environment variable)"
)
"""Remarks of torchrun, and of torch about the old name of a variable that the keeper sets."""
_STEP = re.compile(r"\b(?:step|iter|iteration)\b\W{0,3} {0,12}\d.{0,400}?\bloss\b", re.IGNORECASE)
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
SIGNAL = re.compile(
    r"(?:received|caught|got|handling)\W{1,3}(?:a |the )?(?:signal\W{1,3})?(?:SIGTERM|15\b)"
    r"|SIGTERM (?:received|caught)|closing signal SIGTERM|SignalException|^Terminated\b"
    r"|^(?:\[rank\d+\]: ?)?KeyboardInterrupt|CANCELLED AT",
    re.IGNORECASE,
)
"""What a program or its launcher prints when it is asked to end."""
_GLUED = re.compile(r"\][ \t]*(?=\[(?:rank|default)\d+\]:)")
"""A progress bar ends without a new line: the error of a rank may stand behind it."""
_RANK_FAILED = re.compile(r"\[?E\d{3,4} \d{2}:\d{2}:\d{2}")
"""How torch's C++ side begins an error of a rank that ends without a traceback."""
_OUTSIDE = re.compile(
    r"NVRM: Xid|slurmstepd: (?:error|\*\*\*)|oom[-_]?kill|Killed process \d"
    r"|Memory cgroup out of mem|Fatal Python error: "
    r"|Segmentation fault|Bus error|Illegal instruction|fallen off the bus"
    r"|\bEvicted\b"
)
"""Lines of the kernel, the scheduler and the dying interpreter; each explains an end alone."""
_ALARM = re.compile(
    r"error|exception|fail|fatal|abort|kill|assert|(?<!de)fault(?!handler)|terminat|what\(\)"
    r"|denied|refused|unable|can(?:no|')t|not found|no such|tim(?:ed?|es) ?(?:out|limit)"
    r"|\bnan\b|\binf\b|xid|\boom|memory|cancelled|preempt|exit|unrecogni[sz]ed|bad_alloc|dumped|crash"
    r"|invalid|mismatch|illegal|interrupt|SIG[A-Z]{3,4} received|timeout|space left|too many"
    r"|NCCL WARN|exhausted|evicted|fallen off|\bdied\b|in use",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"retry|retries|falling back|skip|ignor|\b(?:fail|error)\w*\W{1,3}0\b", re.IGNORECASE
)
"""Without a traceback a line counts if it sounds like an error that was not survived."""
_ASSERTION = re.compile(
    r"Assertion .{1,300} failed|NVRM: Xid|encountered in worker|loss scale to (?:0|\d\S{0,30}e-)"
)
"""What a device or a gradient scaler prints before the program notices it."""
_SIGNALLED = re.compile(
    r"Signal (?:4|6|7|8|9|11) \(SIG|failed \(exitcode: -(?:4|6|7|8|9|11)\)"
    r"|exits with return code = -(?:4|6|7|8|9|11)\b"
)
_NOT_FINITE = re.compile(r"\b(?:nan|inf)\b", re.IGNORECASE)
_BAR = re.compile(r"\b\d+/\d+ \[\d+:\d")
_MOST_CLOSED = 3
_RULE = re.compile(r"\W*$")
FATAL = "Fatal Python error: "
"""How a dying interpreter begins to show its threads, which explain nothing."""
_UNTOLD_LINES = 10
SEARCHED_LINES = 40
_MESSAGE_LINES = 10
MOST_ERROR_LINES = 24
MOST_ERROR_CHARS = 600
_REMARKS = re.compile(
    r"\W*(?:\d{4}-\d\d-\d\d\S*\W+(?:\S+\W+)?)?(?:DEBUG|INFO|WARN(?:ING)?)\b|\[?[WI]\d{3,4} \d|[│╭╰]"
    r"|\[W \w{1,40}\.cpp|\S{10} \S{1,20}: [WI] |(?:\(\S{1,60} pid=\S{1,60}\) )?frame #\d"
)
"""Begins of lines that report no error: a low level, a box of rich, a frame of C++."""


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
    """Return the lines of a log without those of launchers and, if marked, of other ranks.

    Args:
        text: the end of a log.
        rank: the wanted rank; None: the rank that failed first, if the lines show it, else all.
    """
    text = _GLUED.sub("]\n", ESCAPES.sub("", text))
    lines = _without_closed_bars(_without_report(text.splitlines()))
    whose = [int(said[1]) if (said := _OF_RANK.match(line)) else None for line in lines]
    plain = [_OF_RANK.sub("", line, count=1) for line in lines]
    wanted = _failed_first(plain, whose) if rank is None else rank
    if wanted is None:
        return plain
    mine = [line for line, said in zip(plain, whose, strict=True) if said == wanted]
    return mine or [line for line, said in zip(plain, whose, strict=True) if said is None]


def _failed_first(lines: Sequence[str], whose: Sequence[int | None]) -> int | None:
    """Return the rank with the first uncaught error that is not about a lost peer.

    Args:
        lines: without the marks of ranks.
        whose: the rank of each line; None: not marked.
    """
    found_at: list[tuple[bool, int, int]] = []
    for rank in {said for said in whose if said is not None}:
        its = [at for at, said in enumerate(whose) if said == rank]
        own = [lines[at] for at in its]
        glog = (at for at, line in enumerate(own) if _RANK_FAILED.match(line))
        begin = next(iter(_chains(own)[0]), next(glog, None))
        if begin is not None:
            is_victim = _VICTIM.search("\n".join(own[begin:])) is not None
            found_at.append((is_victim, its[begin], rank))
    return min(found_at)[2] if found_at else None


def last_error(text: str, rank: int | None = None, steps: Sequence[re.Pattern[str]] = ()) -> str:
    """Return the error that a program ended with and those it came from; else its last lines.

    Args:
        text: the end of its log.
        rank: the wanted rank.
        steps: further formats of step lines, besides `step 3: loss 2.5`.
    """
    lines = _after_steps(own_lines(text, rank), steps)
    chain = _chains(lines)[0]
    return "\n".join(lines[chain[0] :] if chain else _undumped(lines)[-_UNTOLD_LINES:])


def error_lines(
    text: str, rank: int | None = None, steps: Sequence[re.Pattern[str]] = ()
) -> list[str]:
    """Return the lines that name the failure with which a program ended, the most important first.

    With a traceback: the messages of the error and of those it came from, then lines of the kernel,
    the scheduler and the device. Without one: the last lines that sound like an error. If all only
    report a lost peer, the launcher's lines about a rank that a signal ended come first.

    Args:
        text: the end of its log.
        rank: the rank whose error is wanted; None: of the rank that failed first.
        steps: further formats of step lines, besides `step 3: loss 2.5`.

    Returns:
        at most `MOST_ERROR_LINES` lines of at most `MOST_ERROR_CHARS` characters.
    """
    lines = _after_steps(own_lines(text, rank), steps)
    chain = _chains(lines)[0]
    late = _after_steps(text.splitlines()[-SEARCHED_LINES:], steps)
    ends = [line for line in reversed(late) if _SIGNALLED.search(line)]
    if not chain:
        last = [line for line in _undumped(lines) if not is_rule(line)][-SEARCHED_LINES:]
        bad = _alarms(last)
        own = [row for row in bad if not _VICTIM.search(row)]
        return _bounded(own + (ends or [row for row in bad if row not in own]))
    said = [message for head in reversed(chain) if (message := _error_of(lines, head))]
    if ends and all(_VICTIM.search(message[0]) for message in said):
        return _bounded([*outside_lines(text), *ends])
    after = lines[chain[-1] + 1 :]
    before = lines[max(0, chain[0] - SEARCHED_LINES) : chain[0]]
    passed_on = all(_PASSED_ON.match(message[0]) for message in said)
    return _bounded(
        [line for message in said for line in message[: 1 + message[0].endswith(":")]]
        + [line for message in said[:1] for line in message[1:] if not _VICTIM.search(line)]
        + [line for line in reversed(after) if _OUTSIDE.search(line)]
        + (_alarms(before) if passed_on else [])
        + [line for line in reversed(before) if _ASSERTION.search(line)]
    )


def _alarms(lines: Sequence[str]) -> list[str]:
    """Return the lines that sound like an error that was not survived, the last first."""
    loud = (row for row in reversed(lines) if _ALARM.search(row) and not _HARMLESS.search(row))
    return [row for row in loud if not _REMARKS.match(row)]


def signs_in(text: str) -> set[str]:
    """Return the names of the signs in a text."""
    return {name for name, words in SIGNS.items() if words.search(text)}


def outside_lines(text: str) -> list[str]:
    """Return the last lines of a log by which the kernel or a scheduler says why a process died."""
    last = [line for line in text.splitlines()[-SEARCHED_LINES:] if _OUTSIDE.search(line)]
    return _bounded(reversed(last))


def has_traceback(text: str) -> bool:
    """Say whether a log shows a Python traceback."""
    return _TRACEBACK in text


def _bounded(lines: Iterable[str]) -> list[str]:
    cut = (line.strip()[:MOST_ERROR_CHARS] for line in lines)
    return list(islice(dict.fromkeys(line for line in cut if line), MOST_ERROR_LINES))


def _error_of(lines: Sequence[str], head: int) -> list[str]:
    """Return the message of the error whose traceback begins at `head`: its lines up to a gap.

    A line that ends with a colon continues behind a gap. A launcher may begin each line with a
    label, such as `0: ` or `(pid=7) `.
    """
    label = lines[head][: lines[head].rindex("Traceback")].removesuffix("Original ")
    rest = (lines[at].removeprefix(label) for at in range(head + 1, len(lines)))
    message = dropwhile(lambda line: not line.strip() or line[0].isspace(), rest)
    own: list[str] = []
    for line in islice(message, 2 * _MESSAGE_LINES):
        gap = not line.strip() and not own[-1].endswith(":")
        if gap or line.startswith("terminate called") or _CHAINED.match(line):
            break
        own += [line] if line.strip() else []
    return own[:_MESSAGE_LINES]


def _after_steps(lines: list[str], steps: Sequence[re.Pattern[str]]) -> list[str]:
    """Return the lines behind the last step; an error before it was survived.

    The message of a traceback and a line with NaN are no steps.
    """
    messages = {row for head in _chains(lines)[0] for row in _error_of(lines, head)[:1]}
    for last in range(len(lines) - 1, -1, -1):
        line = lines[last]
        if line in messages or _NOT_FINITE.search(line):
            continue
        if any(row.search(line) for row in (_STEP, *steps)):
            return lines[last if line.endswith(_TRACEBACK) else last + 1 :]
    return lines


def _undumped(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines up to where a dying interpreter shows its threads."""
    ends = [at + 1 for at, line in enumerate(lines) if line.startswith(FATAL)]
    return lines[: ends[-1]] if ends else lines


def is_rule(line: str) -> bool:
    """Say whether a line holds no letter and no digit: a row of `====`."""
    return _RULE.match(line) is not None


def _chains(lines: Sequence[str]) -> list[list[int]]:
    """Return the chains of tracebacks, the last chain first; each as the lines where they begin.

    Tracebacks of C++ and of a `__del__` do not count. Without any: one empty chain.
    """
    chains: list[list[int]] = []
    for head, line in enumerate(lines):
        if not line.rstrip().endswith(_TRACEBACK) or line.lstrip().startswith("C++ "):
            continue
        if head and lines[head - 1].startswith("Exception ignored in"):
            continue
        if chains and any(map(_CHAINED.match, lines[chains[-1][-1] : head])):
            chains[-1].append(head)
        else:
            chains.append([head])
    return chains[::-1] or [[]]


def _without_closed_bars(lines: list[str]) -> list[str]:
    """Return a log without the progress bars that a program shows again after its last error."""
    begin = next(iter(_chains(lines)[0]), len(lines))
    bars = [line for line in lines[begin + 1 :] if _BAR.search(line)]
    survived = len(bars) > _MOST_CLOSED
    return lines if survived else [line for line in lines if line not in bars]


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
