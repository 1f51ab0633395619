"""Find the error with which a program ended, in the end of its log. Standard library only.

All functions are pure. `error_lines` returns the lines that name the failure, the most important
first. `last_error` returns the whole text of the last error.

- Several ranks may write into one log. torch begins the lines of an exception with `[rank1]: `.
  The rank that failed first counts. A rank that only lost a peer does not count.
- torchrun, accelerate and other launchers end with a report of their own. The report is left out.
- An error before the last step was survived and does not count.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, islice
from typing import Any

from gonogo.signs import SIGNS

_VICTIM = re.compile(
    f"{SIGNS['peer_lost'].pattern}|Watchdog caught|collective operation timeout"
    r"|Timed out waiting \d{1,12} ?ms for",
    re.IGNORECASE,
)
"""The words of a rank that waited for another: another rank failed, if any says so."""
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
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""What colours a terminal."""
SIGNAL = re.compile(
    r"(?:received|caught|got|handling)\W{1,3}(?:a |the )?(?:signal\W{1,3})?(?:SIGTERM|15\b)"
    r"|SIGTERM (?:received|caught)|closing signal SIGTERM|SignalException|^Terminated\b"
    r"|^(?:\[rank\d+\]: ?)?KeyboardInterrupt|CANCELLED AT",
    re.IGNORECASE,
)
"""What a program or its launcher prints when it is asked to end."""
_GLUED = re.compile(
    r"(\[\d+:\d\d[^\]\n]{0,200}\])[ \t]*(?=(?:\[(?:rank|default)\d+\]: ?)?Traceback \(most recent)"
    r"|(\[\d+:\d\d[^\]\n]{0,200}\])[ \t]*(?=\[rank\d+\]:)"
)
"""A progress bar ends without a new line: the error of a rank may stand behind it."""
_RANK_FAILED = re.compile(r"\[?E\d{3,4} \d{2}:\d{2}:\d{2}")
"""How torch's C++ side begins an error of a rank that ends without a traceback."""
_OUTSIDE = re.compile(
    r"NVRM: Xid|slurmstepd: (?:error|\*\*\*)|oom[-_]?kill|Killed process \d"
    r"|Memory cgroup out of mem|Fatal Python error: "
    r"|Segmentation fault|Bus error|Illegal instruction|fallen off the bus"
    r"|\bEvicted\b"
)
"""Lines of the kernel, the scheduler and the dying interpreter: each explains an end by itself."""
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
"""Without a traceback a line counts only if it sounds like an error, and not like one survived."""
_ASSERTION = re.compile(
    r"Assertion .{1,300} failed|NVRM: Xid|encountered in worker|loss scale to (?:0|\d\S{0,30}e-)"
)
"""What a device or a gradient scaler prints before the program notices it."""
_SIGNALLED = re.compile(
    r"Signal (?:4|6|7|8|9|11) \(SIG|failed \(exitcode: -(?:4|6|7|8|9|11)\)"
    r"|exits with return code = -(?:4|6|7|8|9|11)\b"
)
"""How a launcher reports a rank that a signal ended, other than one that asks it to end."""
_NOT_FINITE = re.compile(r"\b(?:nan|inf)\b", re.IGNORECASE)
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
SEARCHED_LINES = 40
"""Lines before and after an error in which known lines are looked for."""
_MESSAGE_LINES = 10
"""Lines of one error message that are read."""
MOST_ERROR_LINES = 24
MOST_ERROR_CHARS = 600
"""Of what `error_lines` returns: it is recorded, and patterns search each line."""
_REMARKS = re.compile(
    r"\W*(?:\d{4}-\d\d-\d\d\S*\W+(?:\S+\W+)?)?(?:DEBUG|INFO|WARN(?:ING)?)\b|\[?[WI]\d{3,4} \d|[│╭╰]"
    r"|\[W \w{1,40}\.cpp|\S{10} \S{1,20}: [WI] |(?:\(\S{1,60} pid=\S{1,60}\) )?frame #\d"
)
"""How a line begins that reports no error: by its level, as a part of a box that rich draws, or as
a frame of C++."""


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
    text = _GLUED.sub(lambda found: f"{found[0].rstrip()}\n", ESCAPES.sub("", text))
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
    found_at: list[tuple[bool, int, int]] = []
    for rank in {said for said in whose if said is not None}:
        its = [at for at, said in enumerate(whose) if said == rank]
        own = [lines[at] for at in its]
        glog = (at for at, line in enumerate(own) if _RANK_FAILED.match(line))
        begin = next(iter(_chains(own)[0]), next(glog, None))
        if begin is None:
            continue
        went_on = {(whose[at], step) for at, step in steps if at > its[begin]}
        if max(Counter(said for said, _ in went_on).values(), default=0) > _MOST_STEPS_OF_PEERS:
            continue
        error = "\n".join(own[begin:])
        found_at.append((bool(_VICTIM.search(error)), its[begin], rank))
    return min(found_at)[2] if found_at else None


def last_error(text: str, rank: int | None = None, steps: Sequence[re.Pattern[str]] = ()) -> str:
    """Return the error that a program ended with and those it came from; else its last lines.

    Args:
        text: the end of its log.
        rank: whose error is wanted.
        steps: how other lines that tell of a step look than `step 3: loss 2.5`: what stands before
            the last of them was survived.
    """
    lines = _after_steps(own_lines(text, rank), steps)
    chain = _chains(lines)[0]
    return "\n".join(lines[chain[0] :] if chain else _undumped(lines)[-_UNTOLD_LINES:])


def error_lines(
    text: str, rank: int | None = None, steps: Sequence[re.Pattern[str]] = ()
) -> list[str]:
    """Return the lines that name the failure with which a program ended, the most important first.

    With a traceback: the first unindented line behind the last `Traceback`, the same of the errors
    that it came from, the rest of its message, then lines of the kernel, the scheduler and the
    device. Without one: those of the last lines that sound like an error, the last first; where no
    line says more than that a peer was lost, what a launcher says of a rank that a signal ended.

    Args:
        text: the end of its log.
        rank: the rank whose error is wanted; None: of the rank that failed first.
        steps: how other lines of a step look than `step 3: loss 2.5`.

    Returns:
        at most `MOST_ERROR_LINES` lines of at most `MOST_ERROR_CHARS` characters.
    """
    lines = _after_steps(own_lines(text, rank), steps)
    chain = _chain_of_culprit(lines)
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

    What ends with a colon goes on behind a gap.

    A launcher may begin each line with a word of its own, such as `0: ` or `(pid=7) `.
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
    """Return the lines behind the last step: what stands before it was survived.

    An error may speak of its step and loss, too: the message of a traceback is no step, and a line
    with NaN is none.
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
    """Return where tracebacks begin: of each chain, the last chain first, the oldest first.

    One of C++ ended nothing, and neither did one of a `__del__`. Without any: one empty chain.
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


def _chain_of_culprit(lines: Sequence[str]) -> list[int]:
    """Return the tracebacks of the rank that failed first, where ranks do not mark their lines.

    The traceback of a rank that lost a peer stands shortly behind that of the peer.
    """
    chains = _chains(lines)
    for at, before in enumerate(chains):
        if at and chains[at - 1][0] - before[-1] > SEARCHED_LINES:
            break
        if not before or not _VICTIM.search("\n".join(_error_of(lines, before[-1])[:1])):
            return before
    return chains[0]


def _without_closed_bars(lines: list[str]) -> list[str]:
    """Return a log without the bars that a program shows once more when an error has ended it.

    One that goes on behind the error is of a program that has survived it.
    """
    begin = next(iter(_chains(lines)[0]), None)
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
