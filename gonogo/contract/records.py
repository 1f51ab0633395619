"""Which records do processes leave in a run directory? Small JSON files, one model each."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.heartbeat import Count, Identity
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.tick import ExitNumber, FileSeal
from gonogo.contract.wire import Recorded


class RankExit(Recorded):
    """exit_rank{N}.json, by the rank wrapper (or the keeper, when the wrapper died too)."""

    v: int = 1
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    at: float
    lost_peer: bool = False
    """Whether its own last error was that another rank was gone: it is a victim."""


class Written(Recorded):
    """How far a heartbeat file had been written."""

    bytes: Count
    lines: Count
    """Complete lines."""
    sha256: str | None = None
    """Of these bytes; once told only of a rank that was never ordered."""


class Unended(Recorded):
    """A process of the run that outlived SIGKILL: it hangs in the kernel, or is another user's."""

    pid: Count
    state: str
    """As /proc says: D waits uninterruptibly, Z has ended but for some of its threads."""
    wchan: str = ""
    """In which function of the kernel it waits; empty where nobody may know."""


class PartSeals(Recorded):
    """What one node had written of its part of a run when the run ended."""

    exit: FileSeal
    """exit_node{K}.json."""
    watch: FileSeal
    """watch_node{K}.jsonl: its first `bytes` bytes; its follower looks once more after that."""


class ExitRecord(Recorded):
    """exit.json, written last: how the run ended. `reason` is an outcome code.

    `text` may name more: the latched finding's text, or the operator and his reason.
    """

    v: int = 1
    code: ExitNumber | None = None
    signal: ExitNumber | None = None
    ended_at: float
    ended_by: Actor
    reason: OutcomeCode
    text: str = ""
    agent: RankExit | None = None
    """How torchrun (or the one program) itself ended; None where it never ran, or nobody said."""
    ranks: dict[str, RankExit] = Field(default_factory=dict)
    run: str | None = None
    attempt: Count | None = None
    order_sha256: str | None = None
    """Of the bytes of order.json."""
    watch: FileSeal | None = None
    """watch.jsonl as it was when this was written: its first `bytes` bytes."""
    findings: FileSeal | None = None
    """findings.jsonl likewise; findings may follow."""
    requests: list[str] = Field(default_factory=list)
    """Files that stood there by which somebody asked the run to end, such as `.HALT`."""
    heartbeats: dict[str, Written] | None = None
    """Name of each heartbeat file → what stood in it: no rank lives any more that could add to it.

    None where nobody counted."""
    error: list[str] = Field(default_factory=list)
    """Lines that name the error of the rank that failed first, the most important first; none where
    the program did not end by itself. `gonogo/judge/failures.yaml` recognises them."""
    left: list[Unended] = Field(default_factory=list)
    """What could not be ended within a minute; it is swept on, and holds its devices until then."""
    unheard: list[Count] = Field(default_factory=list)
    """Nodes, of a run with several, that have not said how their part ended."""
    nodes: dict[str, PartSeals] | None = None
    """Node → what it had written, of those that have said how their part of a run with several
    ended; None where there is one node, and where a release before this wrote it."""


PREFLIGHT_CHECKS = (
    "devices",
    "disk",
    "shm",
    "orphans",
    "code",
    "environment",
    "peak",
    "resume",
    "store",
)
"""Ids of the preflight checks, in the order in which they are made; an order owes some of them."""
SANITY = "sanity"
"""The check that a workload brings itself; an order of one that does owes it too."""


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


CHECKS_OF_THE_RUN = frozenset({"code", "resume", SANITY})
"""Checks whose failure says nothing of the host: another run may be fit."""


class Preflight(Recorded):
    """preflight/preflight.json."""

    v: int = 1
    passed: bool
    checks: list[Check] = Field(default_factory=list)
    peak_flops: float | None = None
    peak_of: str | None = None
    """Kind of device on which the peak was measured: cpu, cuda; None where nobody says."""
    devices: list[dict[str, Any]] = Field(default_factory=list)
    branch: str | None = None
    """Branch that the code is on; None where it is on none."""
    unfit: dict[str, str] = Field(default_factory=dict)
    """Device → why it is not fit for any run."""
    host: str | None = None
    """Name of the host that was checked; of a scheduler's it is no worker's. None: a pod, which
    does not know its node's."""

    def failed(self) -> frozenset[str]:
        """Return the checks that failed."""
        return frozenset(row.id for row in self.checks if row.outcome is CheckOutcome.FAIL)

    def host_is_unfit(self) -> bool:
        """Say whether the host would not be fit for the next run either."""
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
