"""Tables as typed models; migrations build the same ones.

Append-only: events, decisions, heartbeats, findings. Instants are Unix seconds (REAL, UTC); states
hold the values of the contract's enums; documents are JSON of the contract's models.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from gonogo.contract.api import CampaignState, DeliveryState, OriginView
from gonogo.contract.campaign import Comparison
from gonogo.contract.decision import Cause, ConditionState, DecisionKind, Verdict
from gonogo.contract.finding import Severity
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import CarriedRemedy, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.contract.worker_messages import ClaimRequest
from gonogo.judge.follow_up.decide import Attempt
from service.db.columns import (
    Asked,
    Awaited,
    Id,
    OneOf,
    Promised,
    Seconds,
    SessionKind,
    Stop,
    Table,
)


def _key(of: str) -> Any:
    """Return a column of a primary key that names a row of another table, and goes with it."""
    return mapped_column(ForeignKey(f"{of}.id", ondelete="CASCADE"), primary_key=True)


class CampaignRow(Table):
    """One submission of several runs that are compared; its experiments name it."""

    __tablename__ = "campaigns"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    variants: Mapped[dict[str, Any]]
    """Variant → the frozen plan of its first repeat."""
    labels: Mapped[dict[str, str]]
    state: Mapped[CampaignState] = mapped_column(index=True)
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Seconds)
    ended_at: Mapped[float | None] = mapped_column(Seconds)
    stop: Mapped[Asked | None]
    comparison: Mapped[Comparison | None]


class ExperimentRow(Table):
    """One submission. Its row lock orders everything that happens to it."""

    __tablename__ = "experiments"
    # Plans are large: what is asked of all experiments is answered without reading their rows.
    __table_args__ = (Index("ix_experiments_state_id_ended_at", "state", "id", "ended_at"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(String(64))
    resolved: Mapped[dict[str, Any]]
    labels: Mapped[dict[str, str]]
    state: Mapped[ExperimentState]
    outcome: Mapped[Outcome | None]
    verdict: Mapped[Verdict | None]
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Seconds)
    started_at: Mapped[float | None] = mapped_column(Seconds)
    ended_at: Mapped[float | None] = mapped_column(Seconds)
    event_seq: Mapped[int] = mapped_column(default=0)
    decision_seq: Mapped[int] = mapped_column(default=0)
    token: Mapped[int] = mapped_column(BigInteger, default=0)
    """The last fencing token given out; it grows with each claim of any of its runs."""
    frozen: Mapped[dict[str, Any]]
    """Code identity that the first run froze."""
    stop: Mapped[Stop | None]
    needs: Mapped[str | None] = mapped_column(Text)
    """What a worker has to hold and allow for it, in a sentence; null where any will do."""
    origin: Mapped[OriginView | None]
    """The experiment that it continues; what it takes over is inherited."""
    campaign: Mapped[str | None] = mapped_column(Id, index=True)
    """For one that a campaign began, with variant and repeat: which of its runs it is."""
    variant: Mapped[str | None] = mapped_column(String(64))
    repeat: Mapped[int | None]
    awaiting: Mapped[Awaited | None]
    """While a person is awaited: what for."""


class PhaseRow(Table):
    """One phase of an experiment."""

    __tablename__ = "phases"
    experiment: Mapped[str] = _key("experiments")
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    position: Mapped[int]
    steps: Mapped[int]
    state: Mapped[PhaseState]
    verdict: Mapped[Verdict | None]
    approved_by: Mapped[str | None] = mapped_column(Text)
    init_from: Mapped[str | None] = mapped_column(String(64))
    """The phase whose last weights it begins with; null: it starts fresh."""


class RunRow(Table):
    """One launch of one phase."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("experiment", "phase", "attempt"),
        Index("ix_runs_state_created_at", "state", "created_at"),
        Index("ix_runs_judged_state", "judged", "state"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    phase: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    reason: Mapped[RunReason]
    state: Mapped[RunState]
    token: Mapped[int] = mapped_column(BigInteger, default=0)
    resume_from: Mapped[ResumePoint | None]
    change: Mapped[dict[str, Any] | None]
    """`env` and `train` patch of a confirmation's variant or of a remedy."""
    carried: Mapped[list[CarriedRemedy] | None]
    """Remedies of earlier phases, over which `change` lies; null: none."""
    profile: Mapped[str | None] = mapped_column(String(64))
    """Hardware profile that a worker must serve."""
    gpus: Mapped[int | None]
    """How many; 0: any one slot."""
    foreign: Mapped[bool | None]
    """Whether it starts another program than ours, which a worker must allow."""
    order: Mapped[dict[str, Any] | None]
    suspect: Mapped[bool] = mapped_column(default=False)
    lost: Mapped[bool] = mapped_column(default=False)
    given_up: Mapped[bool | None]
    """For one that has ended: what its end promised and is not here is waited for no more."""
    outcome: Mapped[Outcome | None]
    verdict: Mapped[Verdict | None]
    judged: Mapped[bool] = mapped_column(default=False)
    worker: Mapped[str | None] = mapped_column(String(128), index=True)
    claim: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the secret that its claim was answered with, which every message brings."""
    host: Mapped[str | None] = mapped_column(Text)
    machine: Mapped[str | None] = mapped_column(String(32))
    """Machine id of the host; null: unknown."""
    boot_id: Mapped[str | None] = mapped_column(Text)
    dir: Mapped[str | None] = mapped_column(Text)
    command: Mapped[Stop | None]
    preflight: Mapped[dict[str, Any] | None]
    model: Mapped[dict[str, Any] | None]
    exit: Mapped[dict[str, Any] | None]
    sizes: Mapped[dict[str, Any]]
    """With the end: rank → bytes that judgement waits for."""
    findings_expected: Mapped[int] = mapped_column(BigInteger, default=0)
    promised: Mapped[Promised | None]
    created_at: Mapped[float] = mapped_column(Seconds)
    claimed_at: Mapped[float | None] = mapped_column(Seconds)
    started_at: Mapped[float | None] = mapped_column(Seconds)
    ended_at: Mapped[float | None] = mapped_column(Seconds)


class ProgressRow(Table):
    """What telemetry says about a run, apart from its row: written often, locked by itself."""

    __tablename__ = "progress"
    run: Mapped[str] = _key("runs")
    heard: Mapped[int] = mapped_column(BigInteger, default=0)
    """Grows with every sign of life; the conductor times its growth by its own clock."""
    heard_at: Mapped[float | None] = mapped_column(Seconds)
    waited_until: Mapped[float | None] = mapped_column(Seconds)
    """When its worker last reported that a scheduler lets it wait."""
    heartbeat_at: Mapped[float | None] = mapped_column(Seconds)
    lines: Mapped[int] = mapped_column(BigInteger, default=0)
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    loss: Mapped[str | None] = mapped_column(String(40))
    toks_per_s: Mapped[float | None] = mapped_column(Seconds)
    identity: Mapped[dict[str, Any] | None]
    near: Mapped[dict[str, Any] | None]
    """Detector → how near it is to its limit (`gonogo.contract.finding.Near`)."""


class DecisionRow(Table):
    """One decision; `document` is the whole of it."""

    __tablename__ = "decisions"
    __table_args__ = (UniqueConstraint("experiment", "seq"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    seq: Mapped[int]
    phase: Mapped[str | None] = mapped_column(String(64))
    run: Mapped[str | None] = mapped_column(Id, index=True)
    kind: Mapped[DecisionKind]
    verdict: Mapped[Verdict | None]
    hash: Mapped[str] = mapped_column(String(64))
    at: Mapped[float] = mapped_column(Seconds)
    document: Mapped[str] = mapped_column(Text)
    cause: Mapped[Cause | None]
    """Why it is not GO, as the document says it."""


class AssessmentRow(Table):
    """What an ended run came to by itself: what `decide` takes, and what a decision holds."""

    __tablename__ = "assessments"
    run: Mapped[str] = _key("runs")
    attempt: Mapped[Attempt]
    rules: Mapped[str] = mapped_column(Text)
    facts: Mapped[str] = mapped_column(Text)


class ConditionRow(Table):
    """One condition, as the decisions so far leave it (they are the truth, this is a view)."""

    __tablename__ = "conditions"
    experiment: Mapped[str] = _key("experiments")
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    phase: Mapped[str] = mapped_column(String(64))
    n: Mapped[int]
    state: Mapped[ConditionState]
    document: Mapped[dict[str, Any]]


class OffsetRow(Table):
    """Up to which byte a file of a run is in the database."""

    __tablename__ = "offsets"
    run: Mapped[str] = _key("runs")
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)


class PieceRow(Table):
    """A stretch of a growing file of a run, byte by byte, so that the file can be had again."""

    __tablename__ = "pieces"
    run: Mapped[str] = _key("runs")
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    end: Mapped[int] = mapped_column(BigInteger)
    packed: Mapped[bytes] = mapped_column(LargeBinary)
    """Its bytes, compressed (`service.evidence.files`)."""
    n: Mapped[int | None] = mapped_column(BigInteger)
    """For heartbeats: number of its first line within the run, in the order of arrival, from 1."""
    lines: Mapped[int | None]


class RecordRow(Table):
    """A small record of a run (order.json, exit.json, …) as the bytes that it is."""

    __tablename__ = "records"
    run: Mapped[str] = _key("runs")
    path: Mapped[str] = mapped_column(String(64), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    content: Mapped[bytes] = mapped_column(LargeBinary)


class LogRow(Table):
    """A stretch of a log file."""

    __tablename__ = "logs"
    run: Mapped[str] = _key("runs")
    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    end: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(Text)


class FindingRow(Table):
    """One finding of a run, in the order of its file."""

    __tablename__ = "findings"
    run: Mapped[str] = _key("runs")
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    n: Mapped[int]
    severity: Mapped[Severity] = mapped_column(OneOf(Severity, 10))
    document: Mapped[str] = mapped_column(Text)


class EvidenceRow(Table):
    """One uploaded file of evidence."""

    __tablename__ = "evidence"
    run: Mapped[str] = _key("runs")
    path: Mapped[str] = mapped_column(String(400), primary_key=True)
    size: Mapped[int] = mapped_column("bytes", BigInteger)
    truncated: Mapped[bool]
    content: Mapped[bytes] = mapped_column(LargeBinary)


class KeyRow(Table):
    """An API key, by its hash."""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(20))
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(Seconds)
    revoked_at: Mapped[float | None] = mapped_column(Seconds)
    home: Mapped[str | None] = mapped_column(String(12))
    """For a local key: its owner; several services may share one database."""
    worker: Mapped[str | None] = mapped_column(String(128))
    """For a worker's key: the worker that claimed first with it; no other may."""


class SessionRow(Table):
    """A browser's session, or a one-time link to one, by the hash of its token."""

    __tablename__ = "sessions"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"))
    """The API key whose rights it has; when that is revoked, so is this."""
    kind: Mapped[SessionKind] = mapped_column(OneOf(SessionKind, 10))
    created_at: Mapped[float] = mapped_column(Seconds)
    expires_at: Mapped[float] = mapped_column(Seconds, index=True)


class WorkerRow(Table):
    """A worker, as its last claim described it."""

    __tablename__ = "workers"
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    boot_id: Mapped[str] = mapped_column(Text)
    machine: Mapped[str | None] = mapped_column(String(32))
    """Machine id of its host; null: unknown."""
    seen_at: Mapped[float] = mapped_column(Seconds)
    draining: Mapped[bool] = mapped_column(default=False)
    claim: Mapped[ClaimRequest]


class IdempotencyRow(Table):
    """The stored answer of a creating POST."""

    __tablename__ = "idempotency"
    actor: Mapped[str] = mapped_column(String(40), primary_key=True)
    route: Mapped[str] = mapped_column(String(120), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_digest: Mapped[str] = mapped_column(String(64))
    answer: Mapped[dict[str, Any] | None]
    created_at: Mapped[float] = mapped_column(Seconds, index=True)


class EventRow(Table):
    """Something that happened. `seq` orders an experiment's, `cursor` all of them."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("experiment", "seq"),
        Index("ix_events_cursor", "cursor", unique=True),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    seq: Mapped[int]
    cursor: Mapped[int | None] = mapped_column(BigInteger)
    """Given by the one conductor after the commit: sequences are not commit-ordered."""
    type: Mapped[str] = mapped_column(String(40))
    run: Mapped[str | None] = mapped_column(Id)
    phase: Mapped[str | None] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Seconds)
    data: Mapped[dict[str, Any]]


class AlertRow(Table):
    """The outbox: an alert that was committed together with what it reports."""

    __tablename__ = "alerts"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    type: Mapped[str] = mapped_column(String(40))
    experiment: Mapped[str | None] = mapped_column(Id, index=True)
    run: Mapped[str | None] = mapped_column(Id)
    data: Mapped[dict[str, Any]]
    """AlertData, without `url`."""
    at: Mapped[float] = mapped_column(Seconds)
    spread: Mapped[bool] = mapped_column(default=False)
    """Whether a delivery stands for every subscription that wants it."""


class WebhookRow(Table):
    """A subscription: where alerts of which types go."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(Text)
    types: Mapped[list[str]]
    """Alert types; empty = every type."""
    created_at: Mapped[float] = mapped_column(Seconds)
    disabled_at: Mapped[float | None] = mapped_column(Seconds)


class DeliveryRow(Table):
    """One alert on its way to one subscription."""

    __tablename__ = "deliveries"
    __table_args__ = (Index("ix_deliveries_state_due_at", "state", "due_at"),)
    alert: Mapped[str] = _key("alerts")
    webhook: Mapped[str] = _key("webhooks")
    state: Mapped[DeliveryState] = mapped_column(default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[float] = mapped_column(Seconds)
    delivered_at: Mapped[float | None] = mapped_column(Seconds)
    error: Mapped[str | None] = mapped_column(Text)
