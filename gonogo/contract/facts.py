"""What may a gate look at? All of it, typed: the facts of one run, as a decision records them.

Facts hold no path, no raw bytes and no wall time; numbers are rounded to nine significant digits,
so that the same run gives the same facts on any machine. Lines are held by their count and digest,
and by what the rules' criteria measure on them.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field, JsonValue, computed_field, model_serializer
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from gonogo.contract.decision import Verdict
from gonogo.contract.doubt import Doubt, Effect
from gonogo.contract.finding import Act, Finding, Held, Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import CLASS_OF, Actor, OutcomeClass, OutcomeCode, code_of
from gonogo.contract.records import CheckOutcome
from gonogo.contract.tick import FileSeal, WatchStart
from gonogo.contract.wire import Number, Recorded
from gonogo.contract.workload import RecordedPatch


class SaidIdentity(Identity):
    """An identity as somebody said it: what was not said is left out of the document."""

    @model_serializer(mode="wrap")
    def _only_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}

    def said(self) -> dict[str, Any]:
        """Return what was said, by field name."""
        return {
            name: value
            for name in Identity.model_fields
            if (value := getattr(self, name)) is not None
        }


class OutcomeFacts(Recorded):
    """Why the run ended, without words."""

    code: OutcomeCode
    actor: Actor

    @computed_field(alias="class")  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def klass(self) -> OutcomeClass:
        """Class of the code, from the one table."""
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
    """exit.json: how torchrun ended, and for which run that was written."""

    run: str | None = None
    attempt: int | None = None
    order_sha256: str | None = None
    sealed: bool | None = None
    """Whether the watcher saw the very exit.json that is there; null where it saw none."""
    ranks: dict[str, ProcessExit] = Field(default_factory=dict)
    """How each rank ended, as exit.json tells it."""
    agent: ProcessExit | None = None
    """How torchrun itself ended, of a run that nobody asked to end."""


class NodeChecks(Recorded):
    """What was checked on one node before the launch."""

    passed: bool
    outcomes: dict[str, CheckOutcome]
    """Id of each check → its outcome."""


class PreflightFacts(Recorded):
    """What was checked before the launch."""

    nodes: dict[str, NodeChecks]
    """Node → its checks."""
    unchecked: list[int] = Field(default_factory=list)
    """Nodes without a record, or whose record the watcher never saw."""


class FindingFacts(Recorded):
    """One finding, without its times, its texts and its paths."""

    detector: str
    severity: Severity
    rank: int | None = None
    section: str | None = None
    step: int | None = None
    value: Number | None = None
    threshold: Number | None = None
    source: Source = Source.DEFAULT
    act: Act | None = None
    """When something is done about it."""
    held: Held = None


_Halt = TypeVar("_Halt", Finding, FindingFacts)


class Missing(Recorded):
    """Lines that are owed and not there."""

    count: int
    first: list[str]


class RankFacts(Recorded):
    """One rank's lines."""

    count: int
    digest: str
    """SHA-256 of the canonical lines: parsed, de-duplicated, sorted by boot and seq."""
    boots: int
    gaps: int
    last_step: int
    last_section: str | None
    done_step: int | None
    tokens: list[int]
    missing: Missing | None
    without_loss: Missing | None = None
    """Steps owed whose progress line tells no loss."""
    with_loss: int | None = None
    """How many steps' progress lines tell one: who tells some and not others hides something."""


class BootFacts(Recorded):
    """One process of a rank."""

    boot: str
    lines: int
    run: str | None = None
    """The run that its boot line names."""
    attempt: int | None = None
    said: bool = False
    """Whether it wrote a boot line."""
    ended_steps: int = 0
    identity: SaidIdentity | None = None


class PaceFacts(Recorded):
    """How fast one rank was, in seconds."""

    steps: int
    median_step_s: float | None
    sections_s: dict[str, float | None]


class MeasureRow(Recorded):
    """What one criterion sees on one rank."""

    samples: int = 0
    owed: int = 1
    non_finite: int = 0
    value: Number | None = None
    blocks: list[Number] = Field(default_factory=list)
    """Means of up to 64 blocks of consecutive samples."""


class Measure(Recorded):
    """What one criterion sees."""

    window: str
    """Which steps were looked at, such as `6..40`."""
    ranks: dict[str, MeasureRow]


class Confirmation(Recorded):
    """A failure of the phase, or a run that shows whether it comes again."""

    run: str
    variant: RecordedPatch | None = None
    verdict: Verdict | None = None
    code: OutcomeCode
    step: int | None = None
    """Step at which it ended."""


class FailedBefore(Recorded):
    """A run of the phase that failed criteria which the gate of the judged run cannot see."""

    run: str
    code: OutcomeCode
    criteria: list[str]
    """What it failed (`Judgement.failed`); `unjudged` where it could not be judged."""


class Remedy(Recorded):
    """The remedy under which the judged run was made."""

    diagnosis: str
    patch: dict[str, JsonValue]


class History(Recorded):
    """What the phase's other runs say. It can make a verdict worse, never better."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    restart_storm: bool = False
    confirmations: list[Confirmation] = Field(default_factory=list)
    """The failure and its reruns in their order, the judged run included."""
    remedy: Remedy | None = None
    failed_before: list[FailedBefore] = Field(default_factory=list)


class WatchFacts(Recorded):
    """Whether the run was watched, as measured."""

    ticks: int
    digest: str | None
    """Chain digest of the recorded ticks."""
    starts: list[WatchStart]
    """What each watcher process said that it watches, in order."""
    chained: bool
    """Whether each tick names the digest of the one before."""
    reaches: bool
    """Whether the ticks' own digests cover every line of every process."""
    sealed: bool | None = None
    """Whether watch.jsonl begins with the bytes that exit.json seals; null where it seals none."""


class Facts(Recorded):
    """Everything that a gate may look at."""

    source: Literal["gonogo", "predecessor"]
    outcome: OutcomeFacts | None
    exit: ExitFacts | None
    rank_exits: dict[str, ProcessExit]
    preflight: PreflightFacts | None
    findings: list[FindingFacts]
    ranks: dict[str, RankFacts]
    identity: dict[str, SaidIdentity]
    """Rank → what its last process said that it is."""
    pace: dict[str, PaceFacts]
    failure: str | None = None
    """The known failure that the error of the run shows, by name (docs/reference/failures.md)."""
    measures: dict[str, Measure]
    history: History | None = None
    boots: dict[str, list[BootFacts]] = Field(default_factory=dict)
    """Rank → its processes in the order in which they began."""
    watch: WatchFacts | None = None
    files: dict[str, FileSeal] = Field(default_factory=dict)
    """Files that stay as they are, by name within the run directory."""
    devices: str | None = None
    """Canonical digest of the device lines; null where there are none."""
    config_digest: str | None = None
    """Digest of the order's whole training configuration, computed anew."""
    doubts: list[Doubt] = Field(default_factory=list)
    """What is missing, contradictory or unclear; at most 20 contradictions."""

    def doubts_of(self, effect: Effect) -> list[Doubt]:
        """Return the doubts that have this effect on the verdict."""
        return [row for row in self.doubts if row.effect is effect]

    def latched(self) -> FindingFacts | None:
        """Return the halt finding that ended the run: the first one.

        Where that one waited, or ended nothing, it is the one of which the outcome tells.
        """
        code = None if self.outcome is None else self.outcome.code
        return halt_behind(self.findings, code)


def halt_behind(findings: Iterable[_Halt], outcome: OutcomeCode | None) -> _Halt | None:
    """Return the halt finding that ended a run, as facts name it (`latched`)."""
    halts = [row for row in findings if row.severity is Severity.HALT]
    if not halts:
        return None
    waited = halts[0].act in (Act.AT_CHECKPOINT, Act.PAGE)
    code = outcome if waited else None
    return next((row for row in halts if code_of(row.detector) is code), halts[0])
