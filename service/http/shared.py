"""What if many ask at once for what is the same for all, and costs something to make?

Anybody may ask for the open routes, as often as they like: each answer made by itself, they would
take the CPU and the threads from whoever has a key.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """Makes one answer at a time, in a thread; who waits meanwhile gets the next one, all the same.

    No answer is older than the question, but by `keep_s`. Used from the event loop.

    Args:
        make: makes the answer; what it raises is everybody's who waited for it.
        keep_s: for how long an answer is given again, from when it was begun, so that whoever asks
            in a loop takes no more than what one answer costs, so often.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        make: Callable[[], _T],
        keep_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._keep_s, self._clock = keep_s, clock
        self._kept_until = -math.inf
        self._making = asyncio.Lock()
        self._begun = self._made = 0
        self._last: _T | Exception | None = None

    async def get(self) -> _T:
        """Return an answer that was begun after this was called, or is kept."""
        before = self._begun
        async with self._making:
            if self._made <= before and self._clock() >= self._kept_until:
                self._begun += 1
                began = self._clock()
                self._last = await run_in_threadpool(self._try)
                self._made = self._begun
                if not isinstance(self._last, Exception):
                    self._kept_until = began + self._keep_s
            found = self._last
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[return-value]  # of a first answer there is one by now

    def _try(self) -> _T | Exception:
        try:
            return self._make()
        except Exception as error:  # noqa: BLE001 - raised again in everybody's request
            return error
