"""Which signals interrupt a command that has a run to bring to its end?"""

import signal
from collections.abc import Callable
from types import FrameType


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt(number) for SIGTERM as for SIGINT, in the main thread.

    SIGINT, too: a shell that starts a job in the background leaves it ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(number)

    _answer_by(interrupt)


def note_interrupts(asked: list[int]) -> None:
    """Only note in `asked`, from now on, which of these signals came.

    For a command that is just starting what it is to end then.
    """

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)

    _answer_by(note)


def _answer_by(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
