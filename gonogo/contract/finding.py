"""What did a detector find?"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gonogo.contract.heartbeat import Count
from gonogo.contract.tick import ProcessState
from gonogo.contract.wire import Number, Recorded

Held = Annotated[ProcessState | None, Field(exclude_if=lambda state: state is None)]
"""State in which a process did nothing; left out of a document where it was not held."""


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


class Act(StrEnum):
    """What is done about a halt, and when; null where nothing is (info, suspect, warn)."""

    NOW = "now"
    AT_CHECKPOINT = "at_checkpoint"
    """After the next durable checkpoint: the run is sound until then. `value` is how many seconds
    it has left, and half of them is the longest that a watcher waits."""
    PAGE = "page"
    """Nothing is ended; a person is told."""
    GATE = "gate"
    """Nothing is ended: the detector may only warn, and the gate judges what it found."""


class Finding(Recorded):
    """One finding; idempotent by `key`, which carries the attempt."""

    v: Count = 1
    detector: str
    """One of `outcome.Detector`, or the name of a plug-in."""
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
    act: Act | None = None
    held: Held = None
    """State of the rank's process, if it was held: stopped, uninterruptible or dead."""
    evidence: list[str] = []
    text: str
