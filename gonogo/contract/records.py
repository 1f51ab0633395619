"""The small JSON records of a run directory, and the lines of a follower; one model each."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Finite, Identity
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.tick import AgentProbe, ExitNumber, FileSeal, RankProbe, StackProbe
from gonogo.contract.wire import Recorded


class RankExit(Recorded):
    """exit_rank{N}.json, by the rank wrapper or the keeper."""

    v: int = 1
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    at: float
    lost_peer: bool = False
    """Whether its last error was a lost peer: it is a victim."""


class Written(Recorded):
    """How much of a heartbeat file was written."""

    bytes: Count
    lines: Count
    sha256: str | None = None


class Unended(Recorded):
    """A process of the run that outlived SIGKILL."""

    pid: Count
    state: str
    """As in /proc: D or Z."""
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
    agent: RankExit | None = None
    """Exit of torchrun, or of the one program."""
    ranks: dict[str, RankExit] = Field(default_factory=dict)
    run: str | None = None
    attempt: Count | None = None
    order_sha256: str | None = None
    watch: FileSeal | None = None
    findings: FileSeal | None = None
    requests: list[str] = Field(default_factory=list)
    """Files that asked the run to end, such as `.HALT`."""
    heartbeats: dict[str, Written] | None = None
    """Heartbeat file → what it held after the last rank had ended."""
    error: list[str] = Field(default_factory=list)
    left: list[Unended] = Field(default_factory=list)
    unheard: list[Count] = Field(default_factory=list)
    nodes: dict[str, PartSeals] | None = None
    """Node → what it had written, if it reported its end; None: a run on one node."""


PREFLIGHT_CHECKS = (
    *("devices", "disk", "shm", "orphans", "code", "environment", "peak", "resume", "store"),
)
"""Ids of the preflight checks in their order; an order requires some of them."""
SANITY = "sanity"
CHECKS_OF_THE_RUN = frozenset({"code", "resume", SANITY})
"""Checks that say nothing about the host."""


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
    checks: list[Check] = Field(default_factory=list)
    peak_flops: float | None = None
    peak_of: str | None = None
    devices: list[dict[str, Any]] = Field(default_factory=list)
    branch: str | None = None
    unfit: dict[str, str] = Field(default_factory=dict)
    host: str | None = None
    """None: a pod, which does not know its node."""

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
    ranks: list[RankProbe] = Field(default_factory=list)
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = Field(default_factory=list)
    observations: dict[str, Any] = Field(default_factory=dict)


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
    ranks: dict[str, RankExit] = Field(default_factory=dict)
    left: list[Unended] = Field(default_factory=list)
    oom_at: float | None = None
    """When its kernel killed for lack of memory, Unix seconds."""
    refused: Refusal | None = None
