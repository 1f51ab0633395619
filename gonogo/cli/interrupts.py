"""Signal handlers of commands that must end a run in order."""

import signal
from collections.abc import Callable
from types import FrameType


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt(number) for SIGTERM and SIGINT, which a background job ignores."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(number)

    _answer_by(interrupt)


def note_interrupts(asked: list[int]) -> None:
    """Collect these signals in `asked` from now on, while a run is being started."""

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)

    _answer_by(note)


def _answer_by(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
