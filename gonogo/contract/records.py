"""The records of a run directory, the lines of a follower, and the ticks of `watch.jsonl`.

A tick is recorded if it has bytes, a probe result, a late clock or a finding. It holds the byte
up to which each heartbeat file was read. So the fold of files and ticks is the same everywhere. All
deadlines use `mono`, the watcher's monotonic clock.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite, Identity
from gonogo.contract.outcome import Actor, OutcomeCode
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
    env: dict[str, str] | None = None  # Listed `NSA_*` names of /proc/<pid>/environ; once a boot.


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
    frame: str | None = None  # Innermost native frame, else the innermost Python frame.
    waiting: bool | None = None  # Whether that frame waits in a collective; null: unknown.
    digest: str | None = None
    place: str = ""  # Place of the main thread in words (`gonogo.contract.stack_trace`).
    cpu_s: Finite | None = None  # CPU seconds of the process and its children so far.


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
    seq: Count  # Last seq before the first gap.
    digest: str
    others: Count = 0  # Lines of other boots, and lines that repeat a seq.
    before: str | None = None


class FileSeal(Recorded):
    """Size and digest of a complete file."""

    bytes: Count
    sha256: str


class Tick(Recorded):
    """One line of watch.jsonl."""

    v: int = 1
    n: Count
    mono: Finite  # Monotonic seconds, continued over a restart of the watcher.
    ts: Finite
    interval_s: Finite = 0.25
    late_s: Finite = 0.0
    upto: dict[str, Count] = {}  # Rank → bytes of its heartbeat file read so far.
    ranks: list[RankProbe] = []
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = []
    go: bool = False
    observations: dict[str, Any] = {}  # Kind of probe → what it saw.
    start: WatchStart | None = None
    lines: dict[str, LinesSeen] = {}
    files: dict[str, FileSeal] = {}
    nodes: list[NodeProbe] = []
    prev: str | None = None


class RankExit(Recorded):
    """exit_rank{N}.json, by the rank wrapper or the keeper."""

    v: int = 1
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    at: float
    lost_peer: bool = False  # Whether its last error was a lost peer: it is a victim.


class Written(Recorded):
    """How much of a heartbeat file was written."""

    bytes: Count
    lines: Count
    sha256: str | None = None


class Unended(Recorded):
    """A process of the run that outlived SIGKILL."""

    pid: Count
    state: str  # As in /proc: D or Z.
    wchan: str = ""


class PartSeals(Recorded):
    """What one node had written when the run ended."""

    exit: FileSeal
    watch: FileSeal


class ExitRecord(Recorded):
    """exit.json, written last: how the run ended; `reason` is an outcome code."""

    v: int = 1
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    ended_at: float
    ended_by: Actor
    reason: OutcomeCode
    text: str = ""
    agent: RankExit | None = None  # Exit of torchrun, or of the one program.
    ranks: dict[str, RankExit] = {}
    run: str | None = None
    attempt: Count | None = None
    order_sha256: str | None = None
    watch: FileSeal | None = None
    findings: FileSeal | None = None
    requests: list[str] = []  # Files that asked it to end, as `.HALT`.
    heartbeats: dict[str, Written] | None = None  # Heartbeat file → what it held at the end.
    error: list[str] = []
    left: list[Unended] = []
    unheard: list[Count] = []
    nodes: dict[str, PartSeals] | None = None
    """Node → what it had written at its end; None: a run on one node."""


PREFLIGHT_CHECKS = ("devices", "disk", "shm", "orphans", "code", "environment", "peak", "resume")
"""Ids of the preflight checks in their order; an order requires some of them."""
SANITY = "sanity"
CHECKS_OF_THE_RUN = frozenset({"code", "resume", SANITY})  # Checks that say nothing about the host.


class CheckOutcome(StrEnum):
    """Outcome of one preflight check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(Recorded):
    """One preflight check."""

    id: str
    outcome: CheckOutcome
    text: str


class Preflight(Recorded):
    """preflight/preflight.json."""

    v: int = 1
    passed: bool
    checks: list[Check] = []
    peak_flops: float | None = None
    peak_of: str | None = None
    devices: list[dict[str, Any]] = []
    branch: str | None = None
    unfit: dict[str, str] = {}
    host: str | None = None  # None: a pod, which does not know its node.

    def failed(self) -> frozenset[str]:
        """Return the checks that failed."""
        return frozenset(row.id for row in self.checks if row.outcome is CheckOutcome.FAIL)

    def host_is_unfit(self) -> bool:
        """Say whether the next run would fail on this host too."""
        return bool(self.failed() - CHECKS_OF_THE_RUN)


class ModelRecord(Identity):
    """model.json: the identity as counted on the live model."""

    v: int = 1


class ManifestFile(Recorded):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class Manifest(Recorded):
    """manifest.json of a checkpoint, written last."""

    v: int = 1
    step: int
    files: dict[str, ManifestFile]


class NodeLine(Recorded):
    """One line of watch_node{K}.jsonl, by the follower of a node; node 0's watcher reads it."""

    v: int = 1
    node: Count
    token: int
    host: str
    n: Count
    mono: Finite
    ts: Finite
    ranks: list[RankProbe] = []
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = []
    observations: dict[str, Any] = {}


class Refusal(Recorded):
    """Why a node started nothing."""

    reason: str
    ended_by: str
    text: str


class NodeExit(Recorded):
    """exit_node{K}.json: how one node's part of a run ended."""

    v: int = 1
    node: Count
    host: str
    boot_id: str
    run: str | None = None
    token: int | None = None
    ended_at: float
    agent: RankExit | None = None
    ranks: dict[str, RankExit] = {}
    left: list[Unended] = []
    oom_at: float | None = None  # When its kernel killed for lack of memory, Unix seconds.
    refused: Refusal | None = None
