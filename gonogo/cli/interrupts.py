"""Which signals interrupt a command that has a run to bring to its end?"""

import signal
from types import FrameType


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt(number) for SIGTERM as for SIGINT, in the main thread.

    SIGINT, too: a shell that starts a job in the background leaves it ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
