"""Which resources does the REST API have? Their shapes, shared by service and client."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gonogo.contract.campaign import LEAST_REPEATS, MOST_REPEATS, CampaignSpec
from gonogo.contract.comparison import Comparison
from gonogo.contract.decision import PASSING, Cause, Condition, Verdict
from gonogo.contract.heartbeat import Identity
from gonogo.contract.ids import Kind
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import Order, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.contract.wire import Document, Instant, Labels, Number, Recorded, Submitted, Text

Sets = Annotated[dict[str, Any], Field(max_length=1000)]
"""Dotted path of a plan → value that is laid over it."""


class Submission(Document):
    """POST /experiments."""

    plan: str | dict[str, Any] | None = None
    """Name of a bundled plan, or a plan; null: the one that the experiment of `origin` froze."""
    name: str | None = Field(default=None, max_length=200)
    set: Sets = {}
    labels: Labels = {}
    dry_run: bool = False
    origin: str | None = Field(default=None, max_length=200)
    """`EXPERIMENT:PHASE[@STEP]`: go on where that experiment ended (docs/how-to/plans.md)."""

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
    """Half of such experiments take at most so long, start-ups and checkpoints included."""
    seconds_p90: float | None = None
    """Nine in ten take at most so long."""
    basis: str = "nothing measured yet"
    claimed_seconds: float | None = None
    """What the label `claimed_seconds` promises, for the whole experiment."""
    step_s: float | None = None
    """Seconds of a step that this rests on."""
    next_checkpoint_s: float | None = None
    """Seconds until the run that goes on saves its next checkpoint."""
    cost_p50: float | None = None
    """What `seconds_p50` costs, at the label `price_per_device_hour` for each device."""
    cost_p90: float | None = None
    deadline_s: float | None = None
    """The least that a criterion on `forecast_s` allows for what comes after the present phase."""
    late: bool = False
    """Whether that cannot be met at the pace so far."""


class PhaseView(Recorded):
    """A phase of an experiment."""

    name: str
    state: PhaseState
    steps: int
    init_from: str | None = None
    """Phase whose last weights it begins with; null: it starts fresh."""
    verdict: Verdict | None = None
    runs: list[str] = []

    @property
    def begins(self) -> str:
        """How the plan lets it begin, in words."""
        return "fresh" if self.init_from is None else f"with the weights of {self.init_from}"


class OriginView(Recorded):
    """Where an experiment went on that another had begun."""

    experiment: str
    phase: str
    """The phase that it began with; those before it are inherited."""
    step: int
    """Step after which that phase went on; 0: it began."""
    host: str | None = None
    """Host that wrote the checkpoint; null: it has none, or nobody knows."""


class OverrideView(Recorded):
    """A person's word that stands: a verdict on a phase, or the waiving of a missed condition."""

    decision: str
    phase: str
    condition: str | None = None
    """The missed condition that was waived; null for a verdict on the phase."""
    verdict: Verdict | None
    """What the person said; of a waiver, what the experiment has come to by it."""
    evidence: Verdict | None = None
    """What the evidence says; null where none was judged."""
    actor: str
    reason: str
    at: Instant


class CampaignPlace(Recorded):
    """Which run of a campaign an experiment is."""

    campaign: str
    variant: str
    repeat: int


class NextStep(Recorded):
    """A command to type next."""

    command: str
    text: str
    """What it does."""


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
    """Of one that a campaign began: which of its runs it is."""
    phases: list[PhaseView] = []
    conditions: list[Condition] = []
    forecast: Forecast = Forecast()
    """In lists only of experiments that a worker is at; the experiment itself always tells it."""
    warnings: list[str] = []
    """In the answer to its submission: what is accepted and may still come to nothing."""
    labels: dict[str, str] = {}
    submitted_by: str | None = None
    """Name of the key that submitted it."""
    created_at: Instant
    started_at: Instant | None = None
    ended_at: Instant | None = None
    waiting_for: str | None = None
    """Why nothing happens, in one sentence (no worker, an approval, a decision)."""
    waiting_until: str | None = None
    """When an approval that is awaited expires."""
    overrides: list[OverrideView] = []
    """What a person decided and still stands; not empty: the verdict is one by hand."""
    never_ran: list[str] = []
    """Of a finished experiment: the phases that never ran."""
    cause: Cause | None = None
    """What the evidence says against it: of the last phase whose evidence is not GO."""
    summary: str | None = None
    """What it has come to, in a sentence or two that claim no more than what was seen."""
    next: list[NextStep] = []
    """What can be typed now, the likeliest first."""

    @property
    def so_far(self) -> bool:
        """Whether a verdict that passes is that of the phases so far: others are still to come."""
        passes = self.verdict in PASSING
        return passes and self.state is not ExperimentState.FINISHED

    @property
    def verdict_words(self) -> str:
        """The verdict as people read it: `GO`, `GO by hand`, `GO so far`, or nothing."""
        if self.verdict is None:
            return ""
        words = f"{self.verdict} by hand" if self.overrides else self.verdict.value
        return f"{words} so far" if self.so_far else words

    def override_of(self, phase: str) -> OverrideView | None:
        """Return the person's verdict that stands on a phase, if any (the pages' templates ask)."""
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
    init_from: str | None = None
    """Phase whose last weights its phase begins with; null: it starts fresh."""
    resume_from: ResumePoint | None = None
    """The checkpoint that it began with; null: none."""
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
        """What it began with, in words."""
        point = self.resume_from
        if point is None:
            return "begins fresh"
        if point.step:
            return f"goes on after step {point.step}"
        return f"begins with the weights of {self.init_from or point.path}"


class EventView(Recorded):
    """Something that happened."""

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
    """Whether a worker takes runs: `silent` was not heard of for 30 s, `draining` takes no more."""

    UP = "up"
    SILENT = "silent"
    DRAINING = "draining"


class WorkerView(Recorded):
    """A worker, as its last claim described it."""

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
    """What plans may start there besides nsa.train."""
    allow_env: list[str] = []
    metrics_url: str | None = None
    last_seen_at: Instant


class DeliveryState(StrEnum):
    """What became of an alert; `unsubscribed`: nobody wanted it."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    UNSUBSCRIBED = "unsubscribed"


class DeliveryView(Recorded):
    """An alert on its way to one subscription."""

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
    here: bool
    """Whether the file itself lies on this host (else: an uploaded copy)."""
    truncated: bool = False


class ArtifactsView(Recorded):
    """The files of a run that can be had, and where its directory is."""

    run: str
    host: str | None
    dir: str | None
    reachable: bool
    items: list[ArtifactView]


class LogView(Recorded):
    """A stretch of a log."""

    run: str
    name: str
    text: str
    offset: int
    """Byte of the file at which the stretch begins (the whole chunk, when `tail` cut it)."""
    next_offset: int
    """Where to go on."""


class CampaignState(StrEnum):
    """State of a campaign."""

    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class FoundView(Recorded):
    """A campaign, an experiment, a run or a decision that a name or an id's beginning may mean."""

    id: str
    kind: Kind
    name: str
    """The experiment's, or the campaign's."""
    experiment: str | None
    """Null for a campaign."""
    phase: str | None = None
    state: ExperimentState | RunState | CampaignState | Literal["decided"]
    """Of a campaign, an experiment or a run; `decided` for a decision."""
    verdict: Verdict | None = None
    by_hand: bool = False
    """Whether the verdict is a person's, not that of the evidence alone."""
    at: Instant
    """When it was submitted, created or decided."""


class FoundPage(Recorded):
    """Everything that a name or the beginning of an id may mean, newest first."""

    items: list[FoundView]
    next_cursor: None = None


class AlertType(StrEnum):
    """Types of alerts; webhooks subscribe to them (a row each in docs/how-to/runbook.md)."""

    FINDING_HALT = "finding.halt"
    FINDING_PAGE = "finding.page"
    DECISION_MADE = "decision.made"
    APPROVAL_ASKED = "approval.asked"
    RUN_LOST = "run.lost"
    RUN_LATE = "run.late"
    RUN_UNKNOWN = "run.unknown"
    CAMPAIGN_ENDED = "campaign.ended"


SUBSCRIPTIONS = (
    *(row.value for row in AlertType),
    *(f"{AlertType.DECISION_MADE}:{row.value.lower()}" for row in Verdict),
)
"""What a webhook may ask for: every alert of a type, or decisions of one verdict alone."""


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
"""What the type of each of our problems begins with, and of nobody else's."""


class ProblemBody(Recorded):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    """`urn:gonogo:problem:CODE` of what `docs/reference/rest.md` lists."""
    title: str
    status: int
    detail: str
    instance: str | None = None
    code: str
    errors: list[dict[str, str]] = []
    state: str | None = None
    allowed: list[str] = []
    token: int | None = None
    """With `stale_token`: the token that the run has now."""


class CampaignSubmission(Document):
    """POST /campaigns."""

    plan: str | dict[str, Any]
    name: str | None = Field(default=None, max_length=200)
    set: Sets = {}
    repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] | None = None
    """Instead of the plan's."""
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
    """The decision on its run that is compared."""
    value: Number | None = None
    """Of the metric; null while nothing is judged, and where it does not count."""
    why: str | None = None
    """Why it does not count."""


class CampaignView(Recorded):
    """A campaign."""

    id: str
    name: str
    plan: str
    state: CampaignState
    spec: CampaignSpec
    labels: dict[str, str] = {}
    members: list[CampaignMember] = []
    """In the order in which they were begun."""
    done: int = 0
    """Runs that have ended and are judged."""
    planned: int = 0
    """Runs that it takes as things stand; more, up to the bound, if they decide nothing."""
    eta_s: float | None = None
    """Seconds until those are done, at the pace so far."""
    comparison: Comparison | None = None
    """What it came to; null until it has ended."""
    waiting_for: str | None = None
    warnings: list[str] = []
    """In the answer to its submission: what is accepted and may still come to nothing."""
    text: str = ""
    """How it stands, in one sentence."""
    next: list[NextStep] = []
    """Commands to type next."""
    submitted_by: str | None = None
    created_at: Instant
    ended_at: Instant | None = None

    @property
    def result_words(self) -> str:
        """What it came to, in two words: `flash wins`, `tie`; of one that goes on a dash."""
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
    """What no worker that lives would take as it is."""
    origin: OriginView | None = None
    """What it would go on from; the phases before it have no order."""


class CampaignDryRun(Recorded):
    """`gonogo campaign submit --dry-run`."""

    dry_run: bool
    plan: str
    spec: CampaignSpec
    runs: int
    """Runs before the first look."""
    most_runs: int
    """Runs that it takes at most, those that fail and are made again left out."""
    warnings: list[str]
    orders: dict[str, Order]
    """Variant → the order of its first run."""
