"""How does the keeper know that its watcher goes on? By a byte now and then: no disk takes it."""

import os

EVERY_S = 1.0


class Signs:
    """Signs of life of one watcher.

    Args:
        descriptor: a pipe's end that never blocks; None where nobody listens.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor, self._due = descriptor, float("-inf")

    def give(self, now: float) -> None:
        """Give a sign when it is time; one that nobody takes up is no loss.

        Args:
            now: monotonic seconds.
        """
        if self._descriptor is None or now < self._due:
            return
        self._due = now + EVERY_S
        try:
            os.write(self._descriptor, b".")
        except OSError:  # full: the keeper itself stands still, or nobody listens any more
            return
