"""Read batches ahead in a thread, with time limits.

An error, or a batch that is late, is a `DataFailure` where the batch is asked for.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from nsa.errors import DataFailure

AHEAD = 2


class Prefetch:
    """Batches of `read(split, number)`, training batches read ahead.

    The first batch of a process has its own limit: index, footers and cold connections (R30: 11 s).
    """

    def __init__(
        self,
        read: Callable[[str, int], Any],
        *,
        first_limit_s: float,
        limit_s: float,
    ) -> None:
        self._read, self._first_limit_s, self._limit_s = read, first_limit_s, limit_s
        self._asked: dict[tuple[str, int], Future[Any]] = {}
        self._queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._served = False
        threading.Thread(target=self._work, name="prefetch", daemon=True).start()

    def batch(self, split: str, number: int) -> Any:
        """A batch; training batches after it are being read when this returns.

        Raises:
            DataFailure: it did not come in time, or the source failed.
        """
        wanted = self._ask(split, number)
        if split == "train":
            for later in range(number + 1, number + 1 + AHEAD):
                self._ask(split, later)
        limit_s = self._limit_s if self._served else self._first_limit_s
        try:
            rows = wanted.result(limit_s)
        except TimeoutError:
            raise DataFailure(f"{split} batch {number} did not come in {limit_s:g} s") from None
        self._served |= split == "train"
        for key in [key for key in self._asked if key[0] == split and key[1] < number]:
            del self._asked[key]
        return rows

    def close(self) -> None:
        """Let the thread end after what it is reading now."""
        self._queue.put(None)

    def _ask(self, split: str, number: int) -> "Future[Any]":
        key = (split, number)
        if key not in self._asked:
            self._asked[key] = Future()
            self._queue.put(key)
        return self._asked[key]

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            wanted = self._asked.get(key)
            if wanted is None:  # no longer wanted
                continue
            try:
                wanted.set_result(self._read(*key))
            except DataFailure as failure:
                wanted.set_exception(failure)
            except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for
                unforeseen = DataFailure(f"{key[0]} batch {key[1]}: {error!r}")
                unforeseen.__cause__ = error
                wanted.set_exception(unforeseen)
