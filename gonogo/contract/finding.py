"""What did a detector find?"""

from enum import StrEnum

from gonogo.contract.heartbeat import Count
from gonogo.contract.outcome import Detector
from gonogo.contract.wire import Number, Recorded


class Severity(StrEnum):
    """Weight of a finding; only `halt` ends a run, and only the first one."""

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


class Finding(Recorded):
    """One finding; idempotent by `key`, which carries the attempt."""

    v: int = 1
    detector: Detector
    severity: Severity
    rank: Count | None = None
    section: str | None = None
    step: Count | None = None
    value: Number | None = None
    threshold: Number | None = None
    source: Source = Source.DEFAULT
    since: float | None = None
    """Since when, in Unix seconds (for a stall: the last line that advanced the step)."""
    at: float
    """When it was found, in Unix seconds."""
    key: str
    evidence: list[str] = []
    text: str
