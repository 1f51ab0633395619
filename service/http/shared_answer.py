"""One answer for all who ask at once, so that open routes stay cheap."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

_T = TypeVar("_T")


class Shared(Generic[_T]):
    """Makes one answer at a time, in a thread; used from the event loop.

    Args:
        make: makes the answer; an error reaches the caller who asked first.
        keep_s: seconds for which an answer is given again.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        make: Callable[[], _T],
        keep_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._keep_s, self._clock = make, keep_s, clock
        self._made_at = -math.inf
        self._last: _T | None = None
        self._making = asyncio.Lock()

    async def get(self) -> _T:
        """Return a fresh answer, or one that is at most `keep_s` old."""
        async with self._making:
            if self._last is None or self._clock() - self._made_at >= self._keep_s:
                self._last = await run_in_threadpool(self._make)
                self._made_at = self._clock()
            return self._last
