"""Why a verdict is not GO: one sentence, the guilty rank, and the last line that it wrote.

The words are for people: they stand in the decision, under its hash, and decide nothing. For a
failure that no diagnosis fits, the places to look are listed, the most useful first. It is called
unknown unless it is a hang with a named rank.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import Cause, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.facts import halt_behind
from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector, Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.records import RankExit
from gonogo.evidence_round import by_relevance
from gonogo.judge.failures import find_failure
from gonogo.judge.gate.diagnosis import BY_ITSELF
from gonogo.log_errors import (
    ESCAPES,
    FATAL,
    SEARCHED_LINES,
    SIGNAL,
    error_lines,
    has_traceback,
    is_rule,
    own_lines,
)

MOST_CHARS = 300
MOST_PLACES = 12
TORCHRUN_LOG = "torchrun.log"

STANDS = frozenset({Detector.STALL, Detector.SECTION_DEADLINE})
ReadTail = Callable[[str], str]
"""Name of a log → its end; nothing where there is none."""

_WARNING = re.compile(r"(?:\[rank\d+\]: ?)?\[?[WI]\d{4} \d")
"""How torch's C++ side begins a warning: it does not say why a process ended."""
_NOISE = re.compile(
    r"Extension modules: |(?:Current t|T)hread 0x|<no Python frame>|frame #\d+: "
    r"|<omitting python frames>|Exception raised from .* \(most recent call first\):"
    r"|terminate called without an active exception"
)
"""Lines that show where a dying process stood, not why it died."""
_BEFORE_FATAL = ("what(): ", "terminate called")
"""How C++ reports the exception that ended a process, just before the interpreter's own error."""

SYMPTOMS = frozenset(
    {
        OutcomeCode.NONZERO_EXIT,
        OutcomeCode.STALLED,
        OutcomeCode.TOO_SLOW,
        OutcomeCode.DIVERGED,
    }
)
"""Outcomes that say what was seen and not why; all others are a cause by their name."""


def describe_cause(
    verdict: Verdict | None,
    findings: Sequence[Finding],
    outcome: Outcome | None,
    criteria: Sequence[CriterionResult],
    *,
    diagnosis: str | None = None,
    exits: Mapping[str, RankExit] | None = None,
    read_tail: ReadTail = lambda name: "",
    ranks_per_log: int = 0,
) -> Cause | None:
    """Return why a verdict is not GO; None for a GO.

    Args:
        outcome: why it ended; None where nothing says that it did.
        diagnosis: name of the known failure that the facts show.
        ranks_per_log: how many ranks of a command write into one log, that of the first of them;
            0: rank 0's log is the only one that others may share.
    """
    if verdict is Verdict.GO:
        return None
    halt = halt_behind(findings, None if outcome is None else outcome.code)
    failed = halt is not None or (
        outcome is not None and outcome.klass not in (OutcomeClass.SUCCESS, OutcomeClass.OPERATOR)
    )
    rank = guilty_rank(findings, exits or {}, outcome) if failed else None
    alone = len(exits or {}) == 1
    asked = outcome is not None and outcome.code not in BY_ITSELF
    log, line = None, None
    if failed:
        log, line = _quoted(rank, ranks_per_log, read_tail, diagnosis, alone=alone, asked=asked)
    unexplained = diagnosis is None and outcome is not None and outcome.code in SYMPTOMS
    named = halt is not None and halt.rank is not None and halt.detector in STANDS
    return Cause(
        text=cause_of(findings, outcome, criteria),
        rank=rank,
        log=log,
        line=line,
        unknown=unexplained and not named,
        look=_places(halt, rank, log) if unexplained else [],
    )


def cause_of(
    findings: Sequence[Finding], outcome: Outcome | None, criteria: Sequence[CriterionResult]
) -> str:
    """Return why a run is not GO: its halt finding, its end, or its first bad criterion."""
    halt = halt_behind(findings, None if outcome is None else outcome.code)
    if halt is not None:
        place = [f"rank {halt.rank}" if halt.rank is not None else "", halt.section or ""]
        where = ", ".join(part for part in place if part)
        return f"{halt.detector}{f' ({where})' if where else ''}: {halt.text}"
    if outcome is not None and outcome.klass is not OutcomeClass.SUCCESS:
        text = f": {outcome.text}" if outcome.text else ""
        return f"{outcome.code.value} by {outcome.actor.value}{text}"
    deciding = [row for row in criteria if row.severity is not GateSeverity.ADVISORY]
    bad = [row for row in deciding if row.outcome is not CriterionOutcome.PASS]
    if bad:  # what bars explains more than what leaves a condition
        worst = min(
            bad,
            key=lambda row: (
                row.severity is not GateSeverity.REQUIRED,
                row.outcome is not CriterionOutcome.FAIL,
            ),
        )
        return f"criterion {worst.id} {worst.outcome.value}: {worst.evidence}"
    return "it has not ended" if outcome is None else outcome.code.value


def guilty_rank(
    findings: Sequence[Finding], exits: Mapping[str, RankExit], outcome: Outcome | None = None
) -> int | None:
    """Return the rank that the halt names, else the first that ended badly; None: nobody knows."""
    halt = halt_behind(findings, None if outcome is None else outcome.code)
    if halt is not None:
        return halt.rank
    bad = [(row.at, int(rank)) for rank, row in exits.items() if row.code or row.signal]
    return min(bad)[1] if bad else None


def _quoted(
    rank: int | None,
    ranks_per_log: int,
    read_tail: ReadTail,
    diagnosis: str | None,
    *,
    alone: bool,
    asked: bool,
) -> tuple[str | None, str | None]:
    """Return the log that says most, and the line of it that names the failure."""
    first = rank - rank % ranks_per_log if rank is not None and ranks_per_log else 0
    shared = f"rank{first}.log"
    own = [] if rank is None else [f"rank{rank}.log"]
    names = dict.fromkeys([*own, TORCHRUN_LOG, shared])
    for name in names:
        whose = rank if name == shared and not alone else None
        text = read_tail(name)
        line = last_line(text, whose, asked=asked)
        if line is not None:
            error = None if asked else _error_line(text, whose, diagnosis)
            return name, line if error is None else printable(error)
    return None, None


def _error_line(text: str, rank: int | None, diagnosis: str | None) -> str | None:
    """Return the line that shows the known failure, else that of the last traceback, if any."""
    lines = error_lines(text, rank)
    match = find_failure(lines)
    if match is not None and match.name == diagnosis:
        return match.line
    return lines[0] if lines and has_traceback("\n".join(own_lines(text, rank))) else None


def last_line(text: str, rank: int | None = None, *, asked: bool = False) -> str | None:
    """Return the last line of a log that reports something, printable and bounded, or None.

    Only the lines of `rank` count, where several ranks wrote into one log. A warning counts only
    when nothing else was written. If the run was `asked` to end, the lines from the first report of
    the signal on do not count.
    """
    lines = [printable(line) for line in own_lines(text, rank)]
    if asked:
        last = range(max(0, len(lines) - SEARCHED_LINES), len(lines))
        lines = lines[: next((at for at in last if SIGNAL.search(lines[at])), None)]
    lines = [line for line in lines if line and not is_rule(line)]
    fatal = max((at for at, line in enumerate(lines) if line.startswith(FATAL)), default=None)
    if fatal is not None:
        explained = fatal > 0 and lines[fatal - 1].startswith(_BEFORE_FATAL)
        lines = lines[: fatal if explained else fatal + 1]
    telling = [line for line in lines if not _NOISE.match(line)] or lines
    errors = [line for line in telling if not _WARNING.match(line)] or telling
    return errors[-1] if errors else None


def printable(line: str) -> str:
    """Return a line without escape sequences and control characters, at most `MOST_CHARS` long."""
    plain = "".join(
        sign if sign.isprintable() else " " for sign in ESCAPES.sub("", line[: 40 * MOST_CHARS])
    ).strip()
    return plain if len(plain) <= MOST_CHARS else f"{plain[: MOST_CHARS - 1]}…"


def _places(halt: Finding | None, rank: int | None, log: str | None) -> list[str]:
    """Return where to look, the most useful first: the log, the evidence, the launcher's log."""
    evidence = [] if halt is None else by_relevance(halt.evidence, rank)[: MOST_PLACES - 2]
    return list(dict.fromkeys([*([] if log is None else [log]), *evidence, TORCHRUN_LOG]))
