"""What is said of an experiment below its verdict? What it came to, why, and what to type next."""

from collections.abc import Iterator

from gonogo.cli.screen.times import local
from gonogo.contract.api import ExperimentView
from gonogo.contract.decision import Cause, Decision
from gonogo.judge.failures import explain_decision

MOST_COMMANDS = 4


def standing_lines(view: ExperimentView) -> Iterator[str]:
    """Yield what an experiment has come to, a line for each thing; text as it is, no markup."""
    if view.summary:
        yield view.summary
    if view.cause is not None:
        yield from cause_lines(view.cause)
    if view.waiting_until is not None:
        yield f"until  {local(view.waiting_until)}"
    width = max((len(row.command) for row in view.next[:MOST_COMMANDS]), default=0)
    for number, row in enumerate(view.next[:MOST_COMMANDS]):
        yield f"{'      ' if number else 'next  '} {row.command:<{width}}  # {row.text}"


def cause_lines(cause: Cause) -> Iterator[str]:
    """Yield why a verdict is not GO, and of an unknown failure where to look, in order."""
    yield f"why    {'unknown failure: ' if cause.unknown else ''}{cause.text}"
    if cause.line is not None:
        yield f"       {quote_of(cause)}"
    for number, place in enumerate(cause.look, 1):
        yield f"       {'look at' if number == 1 else '       '} {number}. {place}"


def quote_of(cause: Cause) -> str:
    """Return the last words of the log that say most."""
    return f"{cause.log} ends: {cause.line}"


def diagnosis_lines(decision: Decision) -> Iterator[str]:
    """Yield what the known failure of a decision is called, what it means, and what helps."""
    known = explain_decision(decision)
    yield f"diagnosis    {decision.diagnosis}" + ("" if known is None else f": {known.cause}")
    if known is not None:
        yield f"remedy       {known.remedy}"
