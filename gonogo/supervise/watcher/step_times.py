"""How long did a run's steps take, all in all? The one histogram of them, as Prometheus asks.

The watcher adds each step (`pace`), keeps it in its snapshot and tells it in `.metrics.json`; the
worker's exporter serves it. Buckets are changed here alone: whoever reads a histogram of other
buckets (a watcher of another release wrote it) begins anew, or shows none.
"""

import bisect
import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 60.0, 120.0, 300.0, 600.0, math.inf),
)
"""Upper bounds of the buckets, in seconds, the bound itself included."""


class StepTimes(BaseModel):
    """Steps by duration."""

    model_config = ConfigDict(extra="ignore")

    sum: float = 0.0
    """Seconds of all steps."""
    counts: list[Annotated[int, Field(ge=0, lt=2**53)]] = Field(
        default_factory=lambda: [0] * len(BOUNDS_S)
    )
    """Of each bucket, not cumulated."""

    def add(self, seconds: float) -> None:
        """Count a step."""
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.sum += seconds

    @property
    def fits(self) -> bool:
        """Whether it has the buckets of this release."""
        return len(self.counts) == len(BOUNDS_S)

    def cumulated(self) -> list[tuple[str, int]]:
        """Return bound → steps that took no longer, as Prometheus writes both."""
        total, found = 0, []
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == math.inf else str(bound), total))
        return found
