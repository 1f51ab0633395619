"""Who told the keeper to stop, and how often? Its signals, noted here and read in its one loop.

Standard library only.
"""

import os
import signal

FOR_PROGRAMS = (signal.SIGUSR1, signal.SIGUSR2)
"""What a person sends to a program (`scancel --signal=USR1`), and a scheduler to the whole job."""


class Stops:
    """The signals that told one keeper to stop, in their order.

    Args:
        shield: SIGTERM comes to every process of the run, and several times in one ending, as a
            scheduler sends it.
    """

    def __init__(self, *, shield: bool) -> None:
        self._shield = shield
        self._told: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._told)

    def listen(self) -> int:
        """Install the handlers; return a descriptor that is readable after any signal."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._told.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGCHLD, *FOR_PROGRAMS):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        return reading

    def is_told_twice(self) -> bool:
        """Say whether who asked asks again: the ranks get no more time."""
        asked = [row for row in self._told if row == signal.SIGINT or not self._shield]
        return len(asked) >= 2

    def why(self) -> tuple[str, str, str]:
        """Return cause, who, and why: a person's Ctrl-C, or a host that is being taken away.

        Whoever of ours ends a run writes `.HALT` first; a SIGTERM without one comes from a
        shutdown, a spot market, an eviction or a scheduler.
        """
        if self._told[0] == signal.SIGINT:
            return "halted", "operator", "the keeper was told to stop"
        return "preempted", "infra", "the host told the run to end (SIGTERM)"
