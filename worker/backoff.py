"""Pauses before something that failed is tried again: twice as long each time, with jitter.

With full jitter a hundred hosts do not come back at the same moment after an outage.
"""

import random
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The growing pauses between tries of one thing that may fail; a success resets them."""

    first_s: float
    """The first pause, at most."""
    longest_s: float
    """Any pause, at most."""
    jitter: float = 1.0
    """Share of a pause that chance decides: 1 = all of it, 0 = none."""
    failures: int = 0
    """How often it failed, one after the other."""
    pause_s: float = 0.0
    """The pause that was drawn at the last failure."""
    not_before: float = float("-inf")
    """When it may be tried again, on the clock that `later` was given."""

    def later(self, now: float) -> Self:
        """Return the state after a failure at `now` (seconds of a monotonic clock)."""
        most_s = min(self.longest_s, self.first_s * 2 ** min(self.failures, 32))
        pause_s = most_s * (1 - self.jitter * random.random())
        return replace(self, failures=self.failures + 1, pause_s=pause_s, not_before=now + pause_s)
