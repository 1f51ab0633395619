"""Signs of life of a process for its keeper: one byte a second into a pipe. Stdlib only."""

import os

EVERY_S = 1.0


class LifeSigns:
    """The writing end.

    Args:
        descriptor: a pipe's end that never blocks; None if nobody listens.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor, self._due = descriptor, float("-inf")

    def give(self, now: float) -> None:
        """Give a sign when it is time.

        Args:
            now: monotonic seconds.
        """
        if self._descriptor is None or now < self._due:
            return
        self._due = now + EVERY_S
        try:
            os.write(self._descriptor, b".")
        except OSError:  # the pipe is full, or the keeper is gone
            return
