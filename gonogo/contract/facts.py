"""The facts of one run: everything that a gate may look at, as a decision records it.

The same run gives the same facts on any machine. So facts hold no path and no wall time. Numbers
are rounded to nine significant digits. Lines are held as count, digest and measures.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import JsonValue, computed_field, model_serializer
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from gonogo.contract.decision import Verdict
from gonogo.contract.finding import Act, Doubt, Effect, Finding, Held, Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import CLASS_OF, Actor, OutcomeClass, OutcomeCode, code_of
from gonogo.contract.records import CheckOutcome, FileSeal, WatchStart
from gonogo.contract.wire import Number, Recorded
from gonogo.contract.workload import RecordedPatch


class SaidIdentity(Identity):
    """A reported identity; fields that were not reported are left out of the document."""

    @model_serializer(mode="wrap")
    def _only_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}

    def said(self) -> dict[str, Any]:
        """Return the reported fields by name."""
        named = ((name, getattr(self, name)) for name in Identity.model_fields)
        return {name: value for name, value in named if value is not None}


class OutcomeFacts(Recorded):
    """Why the run ended."""

    code: OutcomeCode
    actor: Actor

    @computed_field(alias="class")  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def klass(self) -> OutcomeClass:
        """Class of the code."""
        return CLASS_OF[self.code]


class ProcessExit(Recorded):
    """How one process ended."""

    code: int | None = None
    signal: int | None = None

    @property
    def clean(self) -> bool:
        """Whether it returned 0 and no signal ended it."""
        return self.code == 0 and not self.signal


class ExitFacts(ProcessExit):
    """exit.json: how torchrun ended."""

    run: str | None = None
    attempt: int | None = None
    order_sha256: str | None = None
    sealed: bool | None = None  # Whether the watcher saw this exit.json; null: it saw none.
    ranks: dict[str, ProcessExit] = {}
    agent: ProcessExit | None = None  # Torchrun's own exit, unless somebody ended the run.


class NodeChecks(Recorded):
    """The preflight checks of one node."""

    passed: bool
    outcomes: dict[str, CheckOutcome]


class PreflightFacts(Recorded):
    """The preflight checks."""

    nodes: dict[str, NodeChecks]
    unchecked: list[int] = []  # Nodes whose record is missing, or unseen by the watcher.


class FindingFacts(Recorded):
    """One finding without times, texts and paths."""

    detector: str
    severity: Severity
    rank: int | None = None
    section: str | None = None
    step: int | None = None
    value: Number | None = None
    threshold: Number | None = None
    source: Source = Source.DEFAULT
    act: Act | None = None
    held: Held = None


_Halt = TypeVar("_Halt", Finding, FindingFacts)


class Missing(Recorded):
    """Required lines that are missing."""

    count: int
    first: list[str]


class RankFacts(Recorded):
    """One rank's lines."""

    count: int
    digest: str  # SHA-256 of the canonical lines, without duplicates, sorted by boot and seq.
    boots: int
    gaps: int
    last_step: int
    last_section: str | None
    done_step: int | None
    tokens: list[int]
    missing: Missing | None
    without_loss: Missing | None = None  # Required steps whose progress line has no loss.
    with_loss: int | None = None  # Steps whose progress line has a loss.


class BootFacts(Recorded):
    """One process of a rank."""

    boot: str
    lines: int
    run: str | None = None
    attempt: int | None = None
    said: bool = False
    ended_steps: int = 0
    identity: SaidIdentity | None = None


class PaceFacts(Recorded):
    """How fast one rank was, in seconds."""

    steps: int
    median_step_s: float | None
    sections_s: dict[str, float | None]


class MeasureRow(Recorded):
    """What one criterion measures on one rank."""

    samples: int = 0
    owed: int = 1
    non_finite: int = 0
    value: Number | None = None
    blocks: list[Number] = []  # Means of up to 64 blocks of samples.


class Measure(Recorded):
    """What one criterion measures."""

    window: str
    ranks: dict[str, MeasureRow]


class Confirmation(Recorded):
    """A failure of the phase, or a rerun that shows whether it is reproduced."""

    run: str
    variant: RecordedPatch | None = None
    verdict: Verdict | None = None
    code: OutcomeCode
    step: int | None = None


class FailedBefore(Recorded):
    """An earlier run of the phase, with the criteria that it failed."""

    run: str
    code: OutcomeCode
    criteria: list[str]


class Remedy(Recorded):
    """The remedy that the judged run tried."""

    diagnosis: str
    patch: dict[str, JsonValue]


class History(Recorded):
    """The phase's other runs; they can only make a verdict worse."""

    restart_storm: bool = False
    confirmations: list[Confirmation] = []
    remedy: Remedy | None = None
    failed_before: list[FailedBefore] = []


class WatchFacts(Recorded):
    """How the run was watched."""

    ticks: int
    digest: str | None
    starts: list[WatchStart]
    chained: bool  # Whether each tick has the digest of the one before.
    reaches: bool  # Whether the ticks' digests cover every line.
    sealed: bool | None = None  # Whether watch.jsonl begins with what exit.json seals; null: none.


class Facts(Recorded):
    """The facts of a run."""

    source: Literal["gonogo", "predecessor"]
    outcome: OutcomeFacts | None
    exit: ExitFacts | None
    rank_exits: dict[str, ProcessExit]
    preflight: PreflightFacts | None
    findings: list[FindingFacts]
    ranks: dict[str, RankFacts]
    identity: dict[str, SaidIdentity]  # Rank → identity that its last process reported.
    pace: dict[str, PaceFacts]
    failure: str | None = None  # Name of the known failure (docs/reference/failures.md).
    measures: dict[str, Measure]
    history: History | None = None
    boots: dict[str, list[BootFacts]] = {}  # Rank → its processes.
    watch: WatchFacts | None = None
    files: dict[str, FileSeal] = {}
    devices: str | None = None
    config_digest: str | None = None
    doubts: list[Doubt] = []

    def doubts_of(self, effect: Effect) -> list[Doubt]:
        """Return the doubts that have this effect on the verdict."""
        return [row for row in self.doubts if row.effect is effect]

    def latched(self) -> FindingFacts | None:
        """Return the halt finding that ended the run."""
        return halt_behind(self.findings, None if self.outcome is None else self.outcome.code)


def halt_behind(findings: Iterable[_Halt], outcome: OutcomeCode | None) -> _Halt | None:
    """Return the halt finding that ended a run: the first one.

    If the first one waited or only paged, it is the one that fits the outcome.
    """
    halts = [row for row in findings if row.severity is Severity.HALT]
    if not halts:
        return None
    waited = halts[0].act in (Act.AT_CHECKPOINT, Act.PAGE)
    code = outcome if waited else None
    return next((row for row in halts if code_of(row.detector) is code), halts[0])
