"""What may a queue message make the worker do? One thing: look whether there is a run to claim.

A message carries no order; it only wakes. The round itself is made by the worker's main thread,
which alone starts processes.
"""

from concurrent.futures import Future
from queue import SimpleQueue

ROUND_LIMIT_S = 120.0

REQUESTS: SimpleQueue[Future[list[str]] | None] = SimpleQueue()
"""Rounds that are asked for; None only interrupts the main loop's waiting."""


def wake(*_: object, **__: object) -> list[str]:
    """Have a round made, wait for its end, and return the ids of the runs that it started.

    Raises:
        TimeoutError: the round takes longer than two minutes.
    """
    asked: Future[list[str]] = Future()
    REQUESTS.put(asked)
    return asked.result(timeout=ROUND_LIMIT_S)
