"""What does the watcher see besides heartbeats? One line of `watch.jsonl`.

A tick is recorded whenever it brought bytes, a probe result, a late clock or a finding. It says up
to which byte each heartbeat file had been read, so that the fold of the files and these lines is
the same wherever and whenever it is made: detectors see nothing else. `mono` is the watcher's own
monotonic clock, the one clock of all deadlines.
"""

from enum import StrEnum

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.wire import Recorded


class ProcessState(StrEnum):
    """State of a rank's process, read from /proc with its start time."""

    ALIVE = "alive"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible"
    DEAD = "dead"
    UNKNOWN = "unknown"


class RankProbe(Recorded):
    """What the watcher saw of one rank's process."""

    rank: Count
    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: int | None = None
    signal: int | None = None
    exit_at: Finite | None = None
    """When it ended, in Unix seconds, from its exit record: tells the cause from its victims."""
    env: dict[str, str] | None = None
    """Allow-listed `NSA_*` names really in /proc/<pid>/environ; once per boot."""


class AgentProbe(Recorded):
    """What the watcher saw of the torchrun agent."""

    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: int | None = None
    signal: int | None = None


class StackProbe(Recorded):
    """One stack reading of one rank, reduced to what detectors use."""

    rank: Count
    round: int = 1
    frame: str | None = None
    """Innermost native frame (or Python frame where native stacks cannot be had)."""
    waiting: bool | None = None
    """Whether that frame waits in a collective (gloo, nccl, c10d …); null when not known."""
    digest: str | None = None
    cpu_s: Finite | None = None
    """CPU seconds of the main thread so far."""


class Tick(Recorded):
    """One line of watch.jsonl."""

    v: int = 1
    n: Count
    """Number of the tick among all that the watcher made (recorded or not)."""
    mono: Finite
    """Seconds of the watcher's monotonic clock, continued over a restart of the watcher."""
    ts: Finite
    interval_s: Finite = 0.25
    """Interval at which the watcher meant to tick."""
    late_s: Finite = 0.0
    """By how much this tick came later than meant."""
    upto: dict[str, Count] = Field(default_factory=dict)
    """Rank → bytes of its heartbeat file that have been read at this tick, from its start."""
    ranks: list[RankProbe] = Field(default_factory=list)
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = Field(default_factory=list)
    go: bool = False
    """Whether `.GO` stood written before this tick."""
