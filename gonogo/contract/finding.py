"""What a detector found, and how near it is to its limit."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from gonogo.contract.heartbeat import Count
from gonogo.contract.tick import ProcessState
from gonogo.contract.wire import Number, Recorded

Held = Annotated[ProcessState | None, Field(exclude_if=lambda state: state is None)]
"""State in which a process did nothing; left out of a document if it was not held."""


class Severity(StrEnum):
    """Weight of a finding; only the first `halt` ends a run."""

    INFO = "info"
    SUSPECT = "suspect"
    WARN = "warn"
    HALT = "halt"


class Source(StrEnum):
    """Where the threshold of a finding came from."""

    DEFAULT = "default"
    PROFILE = "profile"
    PLAN = "plan"
    ADAPTIVE = "adaptive"


class Act(StrEnum):
    """What a halt does, and when."""

    NOW = "now"
    AT_CHECKPOINT = "at_checkpoint"
    """After the next durable checkpoint. `value` is the time left, and the wait ends after half."""
    PAGE = "page"
    """Nothing ends; a person is alerted."""
    GATE = "gate"
    """Nothing ends: the detector only warns, and the gate judges."""


class Finding(Recorded):
    """One finding; idempotent by `key`, which carries the attempt."""

    v: Count = 1
    detector: str
    severity: Severity
    rank: Count | None = None
    section: str | None = None
    step: Count | None = None
    value: Number | None = None
    threshold: Number | None = None
    source: Source = Source.DEFAULT
    since: float | None = None
    """Unix seconds; for a stall the last line that advanced the step."""
    at: float
    key: str
    act: Act | None = None
    held: Held = None
    evidence: list[str] = []
    text: str


class Near(Recorded):
    """Distance of one detector to its limit, on the nearest rank."""

    value: Number | None = None
    limit: Number | None = None
    unit: str = ""
    """`s`, `steps`, `MB` or `tokens/s`; empty for a ratio."""
    below: bool = False
    """Whether it acts when the value falls below the limit."""
    time_left_s: float | None = None
    """Seconds until the limit is reached if nothing changes."""
    blind: str | None = None

    @classmethod
    def in_time(cls, seconds: float, limit_s: float | None) -> Self:
        """Return the distance of a duration to its limit."""
        value = max(0.0, seconds)
        left_s = None if limit_s is None else max(0.0, limit_s - value)
        return cls(value=value, limit=limit_s, unit="s", time_left_s=left_s)

    @property
    def share(self) -> float | None:
        """Return how much of the way to the limit is used; 1.0 at the limit."""
        if self.value is None or self.limit is None:
            return None
        part, whole = (self.limit, self.value) if self.below else (self.value, self.limit)
        return part / whole if whole > 0.0 else None


def nearest(rows: Mapping[str, Near], most: int) -> list[tuple[str, Near]]:
    """Return the detectors nearest to their limits, the nearest first."""
    known = [(name, row, row.share) for name, row in rows.items() if row.blind is None]
    shares = [(share, name, row) for name, row, share in known if share is not None]
    return [(name, row) for _, name, row in sorted(shares, key=lambda row: -row[0])[:most]]
