"""The resources of the REST API, shared by service and client."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gonogo.contract.campaign import LEAST_REPEATS, MOST_REPEATS, CampaignSpec, Comparison
from gonogo.contract.decision import PASSING, Cause, Condition, Verdict
from gonogo.contract.heartbeat import Identity
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import Order, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.contract.wire import Document, Instant, Kind, Labels, Number, Recorded, Submitted, Text

Sets = Annotated[dict[str, Any], Field(max_length=1000)]


class Submission(Document):
    """POST /experiments."""

    plan: str | dict[str, Any] | None = None
    """Name of a bundled plan, or a plan; null: of `origin`."""
    name: str | None = Field(default=None, max_length=200)
    set: Sets = {}
    labels: Labels = {}
    dry_run: bool = False
    origin: str | None = Field(default=None, max_length=200)
    """`EXPERIMENT:PHASE[@STEP]` to continue from (docs/how-to/plans.md)."""

    @model_validator(mode="after")
    def _has_a_plan(self) -> Self:
        if self.plan is None and self.origin is None:
            raise ValueError("plan: missing; expected a plan, or an origin whose plan it is")
        return self


class VerbBody(Submitted):
    """Body of the verbs."""

    reason: Text = ""


class Override(Submitted):
    """POST /experiments/{id}/decisions; with `condition`, waives that condition."""

    verdict: Verdict
    reason: str = Field(min_length=1, max_length=4000, pattern=r"\S")
    condition: str | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if self.condition is not None and self.verdict in (Verdict.NO_GO, Verdict.INCONCLUSIVE):
            raise ValueError(
                f"{self.verdict} waives no condition; say CONDITIONAL_GO, or leave it out"
            )
        return self


class Forecast(Recorded):
    """How long the rest takes, computed from measurement (R18)."""

    seconds_p50: float | None = None
    seconds_p90: float | None = None
    basis: str = "nothing measured yet"
    claimed_seconds: float | None = None
    step_s: float | None = None


class PhaseView(Recorded):
    """A phase of an experiment."""

    name: str
    state: PhaseState
    steps: int
    init_from: str | None = None
    verdict: Verdict | None = None
    runs: list[str] = []

    @property
    def begins(self) -> str:
        """How it begins, in words."""
        return "fresh" if self.init_from is None else f"with the weights of {self.init_from}"


class OriginView(Recorded):
    """The experiment from which another continues."""

    experiment: str
    phase: str  # The first phase of its own; those before are inherited.
    step: int  # Step after which that phase continues; 0: from its start.
    host: str | None = None  # Host that wrote the checkpoint, if known.


class OverrideView(Recorded):
    """A person's decision that stands: a verdict on a phase, or a waived condition."""

    decision: str
    phase: str
    condition: str | None = None
    verdict: Verdict | None  # The person's verdict; after a waiver, that of the experiment.
    evidence: Verdict | None = None
    actor: str
    reason: str
    at: Instant


class CampaignPlace(Recorded):
    """The place of an experiment in a campaign."""

    campaign: str
    variant: str
    repeat: int


class NextStep(Recorded):
    """A command that the user may type next."""

    command: str
    text: str


class ExperimentView(Recorded):
    """An experiment."""

    id: str
    name: str
    plan: str
    state: ExperimentState
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    origin: OriginView | None = None
    campaign: CampaignPlace | None = None
    phases: list[PhaseView] = []
    conditions: list[Condition] = []
    forecast: Forecast = Forecast()  # In lists only for experiments that run.
    warnings: list[str] = []  # In the answer to a submission: what may fail although accepted.
    labels: dict[str, str] = {}
    submitted_by: str | None = None
    created_at: Instant
    started_at: Instant | None = None
    ended_at: Instant | None = None
    waiting_for: str | None = None
    waiting_until: str | None = None  # When the awaited approval expires.
    overrides: list[OverrideView] = []
    never_ran: list[str] = []
    cause: Cause | None = None
    summary: str | None = None
    next: list[NextStep] = []

    @property
    def so_far(self) -> bool:
        """Whether the verdict passes, and more phases follow."""
        passes = self.verdict in PASSING
        return passes and self.state is not ExperimentState.FINISHED

    @property
    def verdict_words(self) -> str:
        """The verdict in words: `GO`, `GO by hand`, `GO so far`, or nothing."""
        if self.verdict is None:
            return ""
        words = f"{self.verdict} by hand" if self.overrides else self.verdict.value
        return f"{words} so far" if self.so_far else words

    def override_of(self, phase: str) -> OverrideView | None:
        """Return the person's verdict on a phase, if any."""
        rows = (row for row in self.overrides if row.phase == phase and row.condition is None)
        return next(rows, None)


class RunView(Recorded):
    """A run."""

    id: str
    experiment: str
    phase: str
    attempt: int
    reason: RunReason
    state: RunState
    suspect: bool = False
    lost: bool = False
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    worker: str | None = None
    step: int = 0
    steps: int
    init_from: str | None = None  # Phase whose last weights it begins with; null: it is fresh.
    resume_from: ResumePoint | None = None
    loss: float | None = None
    toks_per_s: float | None = None
    last_heartbeat_at: Instant | None = None
    identity: Identity | None = None
    dir: str | None = None
    host: str | None = None
    created_at: Instant
    started_at: Instant | None = None
    ended_at: Instant | None = None

    @property
    def began(self) -> str:
        """How it began, in words."""
        point = self.resume_from
        if point is None:
            return "begins fresh"
        if point.step:
            return f"continues after step {point.step}"
        return f"begins with the weights of {self.init_from or point.path}"


class EventView(Recorded):
    """An event of an experiment."""

    id: str
    experiment: str
    seq: int
    cursor: int | None = None
    type: str
    run: str | None = None
    phase: str | None = None
    actor: str
    at: Instant
    data: dict[str, Any]


class WorkerState(StrEnum):
    """Whether a worker takes runs; `silent` was not heard for 30 s."""

    UP = "up"
    SILENT = "silent"
    DRAINING = "draining"


class WorkerView(Recorded):
    """A worker, by its last claim."""

    id: str
    host: str
    state: WorkerState
    version: str
    labels: dict[str, str]
    profiles: list[str]
    devices: list[str]
    free: list[str]
    active: list[str]
    allow: list[str] = []
    allow_env: list[str] = []
    metrics_url: str | None = None
    last_seen_at: Instant


class DeliveryState(StrEnum):
    """State of an alert."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    UNSUBSCRIBED = "unsubscribed"


class DeliveryView(Recorded):
    """The delivery of an alert to one subscription."""

    webhook: str
    state: DeliveryState
    attempts: int
    delivered_at: Instant | None = None
    error: str | None = None


class AlertView(Recorded):
    """An alert of the outbox."""

    id: str
    type: str
    experiment: str | None = None
    run: str | None = None
    at: Instant
    text: str
    data: dict[str, Any]
    state: DeliveryState
    deliveries: list[DeliveryView]


class ArtifactView(Recorded):
    """A file of a run."""

    path: str
    bytes: int
    here: bool  # Whether the file lies on this host; else it is an uploaded copy.
    truncated: bool = False


class ArtifactsView(Recorded):
    """The files of a run that can be read, and where its directory is."""

    run: str
    host: str | None
    dir: str | None
    reachable: bool
    items: list[ArtifactView]


class LogView(Recorded):
    """A part of a log."""

    run: str
    name: str
    text: str
    offset: int  # Byte of the file at which the part begins.
    next_offset: int


class CampaignState(StrEnum):
    """State of a campaign."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class FoundView(Recorded):
    """A campaign, experiment, run or decision that a name may mean."""

    id: str
    kind: Kind
    name: str
    experiment: str | None
    phase: str | None = None
    state: ExperimentState | RunState | CampaignState | Literal["decided"]
    verdict: Verdict | None = None
    by_hand: bool = False
    at: Instant


class FoundPage(Recorded):
    """Everything that a name may mean, newest first."""

    items: list[FoundView]
    next_cursor: None = None


class AlertType(StrEnum):
    """Types of alerts that webhooks subscribe to."""

    FINDING_HALT = "finding.halt"
    FINDING_PAGE = "finding.page"
    DECISION_MADE = "decision.made"
    APPROVAL_ASKED = "approval.asked"
    RUN_LOST = "run.lost"
    CAMPAIGN_ENDED = "campaign.ended"


SUBSCRIPTIONS = (
    *(row.value for row in AlertType),
    *(f"{AlertType.DECISION_MADE}:{row.value.lower()}" for row in Verdict),
)
"""What a webhook may subscribe to: a type, or the decisions of one verdict."""


class AlertData(Recorded):
    """`data` of an alert."""

    alert_id: str
    experiment: str | None = None
    run: str | None = None
    phase: str | None = None
    rank: int | None = None
    finding: dict[str, Any] | None = None
    decision: dict[str, Any] | None = None
    text: str
    url: str


class AlertBody(Recorded):
    """Body of a webhook, after the Standard Webhooks specification."""

    type: str
    timestamp: Instant
    data: AlertData


PROBLEM_URN = "urn:gonogo:problem:"


class ProblemBody(Recorded):
    """RFC 9457 problem details."""

    type: str = "about:blank"  # `urn:gonogo:problem:CODE`; docs/reference/rest.md lists the codes.
    title: str
    status: int
    detail: str
    instance: str | None = None
    code: str
    errors: list[dict[str, str]] = []
    state: str | None = None
    allowed: list[str] = []
    token: int | None = None  # The run's present token, with `stale_token`.


class CampaignSubmission(Document):
    """POST /campaigns."""

    plan: str | dict[str, Any]
    name: str | None = Field(default=None, max_length=200)
    set: Sets = {}
    repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] | None = None
    labels: Labels = {}
    dry_run: bool = False


class CampaignMember(Recorded):
    """One experiment of a campaign."""

    experiment: str
    variant: str
    repeat: int
    state: ExperimentState
    verdict: Verdict | None = None
    decision: str | None = None
    value: Number | None = None  # Value of the metric; null: not judged, or it does not count.
    why: str | None = None


class CampaignView(Recorded):
    """A campaign."""

    id: str
    name: str
    plan: str
    state: CampaignState
    spec: CampaignSpec
    labels: dict[str, str] = {}
    members: list[CampaignMember] = []
    done: int = 0  # Judged runs.
    planned: int = 0  # Runs before the next look.
    eta_s: float | None = None
    comparison: Comparison | None = None
    waiting_for: str | None = None
    warnings: list[str] = []  # In the answer to a submission: what may fail although accepted.
    text: str = ""
    next: list[NextStep] = []
    submitted_by: str | None = None
    created_at: Instant
    ended_at: Instant | None = None

    @property
    def result_words(self) -> str:
        """The result in two words: `flash wins`, `tie`, or a dash while it runs."""
        if self.comparison is None:
            return "–" if self.state is CampaignState.RUNNING else str(self.state)
        winner = self.comparison.winner
        return f"{winner} wins" if winner else str(self.comparison.result)


class DryRun(Recorded):
    """`gonogo submit --dry-run`."""

    dry_run: bool
    plan: dict[str, Any]
    plan_digest: str
    train: dict[str, Any]
    fault: str | None
    orders: list[Order]
    warnings: list[str] = []
    origin: OriginView | None = None


class CampaignDryRun(Recorded):
    """`gonogo campaign submit --dry-run`."""

    dry_run: bool
    plan: str
    spec: CampaignSpec
    runs: int  # Runs before the first look.
    most_runs: int
    warnings: list[str]
    orders: dict[str, Order]
