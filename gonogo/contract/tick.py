"""One line of `watch.jsonl`: what the watcher saw besides heartbeats.

A tick is recorded if it has bytes, a probe result, a late clock or a finding. It holds the byte
up to which each heartbeat file was read. So the fold of files and ticks is the same everywhere. All
deadlines use `mono`, the watcher's monotonic clock.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.wire import Recorded

ExitNumber = Annotated[int, Field(ge=-(2**31), lt=2**32)]

_RANK = re.compile(r"0|[1-9][0-9]{0,5}")


@lru_cache(maxsize=4096)
def parse_rank(name: str) -> int | None:
    """Return the rank that a key names, or None."""
    return int(name) if _RANK.fullmatch(name) is not None else None


class ProcessState(StrEnum):
    """State of a process, read from /proc with its start time."""

    ALIVE = "alive"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible"
    DEAD = "dead"
    UNKNOWN = "unknown"


STATE_WORDS: dict[ProcessState, str] = {
    **{state: state.value for state in ProcessState},
    ProcessState.STOPPED: "stopped (state T)",
    ProcessState.UNINTERRUPTIBLE: "uninterruptible (state D)",
}
"""A state in words, with the letter of `ps`."""


class RankProbe(Recorded):
    """What the watcher saw of one rank's process."""

    rank: Count
    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    exit_at: Finite | None = None
    lost_peer: bool = False
    env: dict[str, str] | None = None
    """Listed `NSA_*` names of /proc/<pid>/environ; once a boot."""


class AgentProbe(Recorded):
    """What the watcher saw of the torchrun agent."""

    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    node: Count | None = None


class StackProbe(Recorded):
    """One stack of one rank, reduced to what detectors use."""

    rank: Count
    round: int = 1
    frame: str | None = None
    """Innermost native frame, else the innermost Python frame."""
    waiting: bool | None = None
    """Whether that frame waits in a collective; null: unknown."""
    digest: str | None = None
    place: str = ""
    """Place of the main thread in words (`gonogo.contract.stack_trace`)."""
    cpu_s: Finite | None = None
    """CPU seconds of the process and its children so far."""


class NodeState(StrEnum):
    """What the watcher knows of a node."""

    HEARD = "heard"
    SILENT = "silent"
    LOST = "lost"
    ENDED = "ended"


class NodeProbe(Recorded):
    """A change of one node's state, in a run on several nodes."""

    node: Count
    state: NodeState
    host: str = ""
    text: str = ""


class WatchStart(Recorded):
    """The watched run; on the first tick of each watcher process."""

    run: str
    attempt: Count
    order_sha256: str
    version: str = ""


class LinesSeen(Recorded):
    """How much of one rank's file was read at a tick."""

    boot: str
    seq: Count
    """Last seq before the first gap."""
    digest: str
    others: Count = 0
    """Lines of other boots, and lines that repeat a seq."""
    before: str | None = None


class FileSeal(Recorded):
    """Size and digest of a complete file."""

    bytes: Count
    sha256: str


class Tick(Recorded):
    """One line of watch.jsonl."""

    v: int = 1
    n: Count
    mono: Finite
    """Monotonic seconds, continued over a restart of the watcher."""
    ts: Finite
    interval_s: Finite = 0.25
    late_s: Finite = 0.0
    upto: dict[str, Count] = Field(default_factory=dict)
    """Rank → bytes of its heartbeat file that were read so far."""
    ranks: list[RankProbe] = Field(default_factory=list)
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = Field(default_factory=list)
    go: bool = False
    observations: dict[str, Any] = Field(default_factory=dict)
    """Kind of probe → what it saw (`gonogo.contract.observation`)."""
    start: WatchStart | None = None
    lines: dict[str, LinesSeen] = Field(default_factory=dict)
    files: dict[str, FileSeal] = Field(default_factory=dict)
    nodes: list[NodeProbe] = Field(default_factory=list)
    prev: str | None = None
