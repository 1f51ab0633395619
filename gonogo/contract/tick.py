"""What does the watcher see besides heartbeats? One line of `watch.jsonl`.

A tick is recorded whenever it brought bytes, a probe result, a late clock or a finding. It says up
to which byte each heartbeat file had been read, so that the fold of the files and these lines is
the same wherever and whenever it is made: detectors see nothing else. `mono` is the watcher's own
monotonic clock, the one clock of all deadlines.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite
from gonogo.contract.wire import Recorded

ExitNumber = Annotated[int, Field(ge=-(2**31), lt=2**32)]
"""An exit code or a signal, as an operating system gives it."""

_RANK = re.compile(r"0|[1-9][0-9]{0,5}")


@lru_cache(maxsize=4096)
def parse_rank(name: str) -> int | None:
    """Return the rank that a key names, or None: each rank has one spelling."""
    return int(name) if _RANK.fullmatch(name) is not None else None


class ProcessState(StrEnum):
    """State of a rank's process, read from /proc with its start time."""

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
"""A state in words, with the letter that `ps` shows for it."""


class RankProbe(Recorded):
    """What the watcher saw of one rank's process."""

    rank: Count
    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    exit_at: Finite | None = None
    """When it ended, in Unix seconds, from its exit record: tells the cause from its victims."""
    lost_peer: bool = False
    """Whether its own last error was that another rank was gone, from its exit record."""
    env: dict[str, str] | None = None
    """Allow-listed `NSA_*` names really in /proc/<pid>/environ; once per boot."""


class AgentProbe(Recorded):
    """What the watcher saw of the torchrun agent."""

    pid: Count | None = None
    state: ProcessState = ProcessState.UNKNOWN
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    node: Count | None = None
    """Whose it is, where a run has several."""


class StackProbe(Recorded):
    """One stack reading of one rank, reduced to what detectors use."""

    rank: Count
    round: int = 1
    frame: str | None = None
    """Innermost native frame (or Python frame where native stacks cannot be had)."""
    waiting: bool | None = None
    """Whether that frame waits in a collective (gloo, nccl, c10d …); null when not known."""
    digest: str | None = None
    place: str = ""
    """Where the main thread stands, in words (`gonogo.contract.stack_trace`)."""
    cpu_s: Finite | None = None
    """CPU seconds of the process and all below it so far, threads and ended children included."""


class NodeState(StrEnum):
    """What the watcher knows of a node."""

    HEARD = "heard"
    SILENT = "silent"
    """Nothing comes from it: what its ranks do is unknown."""
    LOST = "lost"
    """It is proven to have ended, and has not said so itself."""
    ENDED = "ended"
    """It has said how its part ended."""


class NodeProbe(Recorded):
    """What became of one node of a run that has several; told when it changes."""

    node: Count
    state: NodeState
    host: str = ""
    text: str = ""
    """Why it is certain that it has ended."""


class WatchStart(Recorded):
    """Which run is watched, by which watcher: on the first tick of each watcher process."""

    run: str
    attempt: Count
    order_sha256: str
    """Of the bytes of order.json."""
    version: str = ""
    """Release of gonogo that watches."""


class LinesSeen(Recorded):
    """How far one boot of one rank had been read at a tick."""

    boot: str
    seq: Count
    """Highest seq up to which none is missing."""
    digest: str
    """Chain digest of the canonical lines up to there (`gonogo.timeline.lines`)."""
    others: Count = 0
    """Lines read besides: of other boots, and those that differ from one of the same seq."""
    before: str | None = None
    """Digest of the lines of other boots; null while there are none."""


class FileSeal(Recorded):
    """A file that stays as it is."""

    bytes: Count
    sha256: str


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
    observations: dict[str, Any] = Field(default_factory=dict)
    """Kind of probe → what it saw, such as `devices: [DeviceSample]` (docs/detectors.md)."""
    start: WatchStart | None = None
    lines: dict[str, LinesSeen] = Field(default_factory=dict)
    """Rank → how far it had been read, of the ranks that brought lines with this tick."""
    files: dict[str, FileSeal] = Field(default_factory=dict)
    """Files that were complete and read for the first time, such as `exit.json`."""
    nodes: list[NodeProbe] = Field(default_factory=list)
    """What changed with the nodes of a run that has several."""
    prev: str | None = None
    """SHA-256 of the line of the recorded tick before this one; null on the first."""
