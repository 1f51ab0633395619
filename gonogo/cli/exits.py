"""Exit codes of all commands, and the signals that end them."""

import signal
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Annotated, Literal

import typer

from gonogo.contract.api import ExperimentView
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import GonogoError, NotAllowed, NotFound, Rejected, Unavailable
from gonogo.contract.outcome import OutcomeCode


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    UNREACHABLE = 5
    NO_GO = 10
    CONDITIONAL_GO = 11
    INCONCLUSIVE = 12
    CANCELLED = 13
    BY_HAND = 14
    INTERRUPTED = 130


EXIT_WORDS: dict[int, str] = {
    Exit.OK: "GO, or done",
    Exit.UNEXPECTED: "unexpected, or different from what was recorded",
    Exit.BAD_INPUT: "bad input",
    Exit.NOT_FOUND: "not found",
    Exit.NOT_ALLOWED: "not allowed",
    Exit.UNREACHABLE: "the service does not answer",
    Exit.NO_GO: "NO_GO",
    Exit.CONDITIONAL_GO: "CONDITIONAL_GO",
    Exit.INCONCLUSIVE: "INCONCLUSIVE",
    Exit.CANCELLED: "cancelled",
    Exit.BY_HAND: "decided by hand: an override stands, whatever it says",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}


Accept = Annotated[
    Literal["conditional"] | None,
    typer.Option("--accept", help="Exit with 0 also for this verdict: `conditional`."),
]

_OF_VERDICT = {
    Verdict.GO: Exit.OK,
    Verdict.NO_GO: Exit.NO_GO,
    Verdict.CONDITIONAL_GO: Exit.CONDITIONAL_GO,
    Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
}
_OF_ERROR: tuple[tuple[type[GonogoError], Exit], ...] = (
    (NotFound, Exit.NOT_FOUND),
    (NotAllowed, Exit.NOT_ALLOWED),
    (Rejected, Exit.BAD_INPUT),
    (Unavailable, Exit.UNREACHABLE),
)


def exit_of_verdict(verdict: Verdict | None, code: OutcomeCode | None = None) -> Exit:
    """Return the exit code of an experiment or a decision; no verdict means cancelled."""
    if verdict is None:
        return Exit.CANCELLED if code is OutcomeCode.CANCELLED else Exit.INCONCLUSIVE
    return _OF_VERDICT[verdict]


def exit_of_experiment(view: ExperimentView) -> Exit:
    """Return the exit code of an experiment; one with phases still to come is no GO."""
    if view.overrides and view.verdict is not None:
        return Exit.BY_HAND
    if view.so_far:
        return Exit.INCONCLUSIVE
    return exit_of_verdict(view.verdict, view.outcome.code if view.outcome else None)


def accepted(code: int, accept: str | None) -> int:
    """Return the exit code of a verdict; 0 if the caller accepts that verdict."""
    return Exit.OK if accept is not None and code == Exit.CONDITIONAL_GO else code


def exit_of_error(error: GonogoError) -> Exit:
    """Return the exit code of an error."""
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), Exit.UNEXPECTED)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt(number) for SIGTERM and SIGINT, which a background job ignores."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(number)

    _answer_by(interrupt)


def note_interrupts(asked: list[int]) -> None:
    """Collect these signals in `asked` from now on, while a run is being started."""
    _answer_by(lambda number, frame: asked.append(number))


def _answer_by(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
