"""Tables of campaigns, experiments, phases, runs and decisions."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from gonogo.contract.api import CampaignState, OriginView
from gonogo.contract.comparison import Comparison
from gonogo.contract.decision import Cause, ConditionState, DecisionKind, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import CarriedRemedy, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.judge.follow_up.action import Attempt
from service.db.documents import Asked, Awaited, Promised, Stop
from service.db.schema.table import Id, Seconds, Table


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
    """What an operator asked."""
    comparison: Mapped[Comparison | None]
    """What it came to."""


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
    event_seq: Mapped[int] = mapped_column(Integer, default=0)
    decision_seq: Mapped[int] = mapped_column(Integer, default=0)
    token: Mapped[int] = mapped_column(BigInteger, default=0)
    """The last fencing token given out; it grows with each claim of any of its runs."""
    frozen: Mapped[dict[str, Any]]
    """Code identity that the first run froze."""
    stop: Mapped[Stop | None]
    """What an operator asked."""
    needs: Mapped[str | None] = mapped_column(Text)
    """What a worker has to hold and allow for it, in a sentence; null where any will do."""
    origin: Mapped[OriginView | None]
    """The experiment that it continues; what it takes over is inherited."""
    campaign: Mapped[str | None] = mapped_column(Id, index=True)
    """For one that a campaign began, with variant and repeat: which of its runs it is."""
    variant: Mapped[str | None] = mapped_column(String(64))
    repeat: Mapped[int | None] = mapped_column(Integer)
    awaiting: Mapped[Awaited | None]
    """While a person is awaited: what for."""


class PhaseRow(Table):
    """One phase of an experiment."""

    __tablename__ = "phases"
    experiment: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    position: Mapped[int] = mapped_column(Integer)
    steps: Mapped[int] = mapped_column(Integer)
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
        Index("ix_runs_judged_state_packed", "judged", "state", "packed"),
    )
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    phase: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int] = mapped_column(Integer)
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
    gpus: Mapped[int | None] = mapped_column(Integer)
    """How many; 0: any one slot."""
    foreign: Mapped[bool | None] = mapped_column(Boolean)
    """Whether it starts another program than ours, which a worker must allow."""
    labels: Mapped[str | None] = mapped_column(Text)
    """What a worker must say of itself, as canonical JSON; null: nothing."""
    order: Mapped[dict[str, Any] | None]
    suspect: Mapped[bool] = mapped_column(Boolean, default=False)
    lost: Mapped[bool] = mapped_column(Boolean, default=False)
    given_up: Mapped[bool | None] = mapped_column(Boolean)
    """For one that has ended: what its end promised and is not here is waited for no more."""
    packed: Mapped[bool | None] = mapped_column(Boolean)
    """For one that was judged: whether its files have been packed since."""
    outcome: Mapped[Outcome | None]
    verdict: Mapped[Verdict | None]
    judged: Mapped[bool] = mapped_column(Boolean, default=False)
    worker: Mapped[str | None] = mapped_column(String(128), index=True)
    claim: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the secret that its claim was answered with, which every message brings."""
    host: Mapped[str | None] = mapped_column(Text)
    """Its name, for people."""
    machine: Mapped[str | None] = mapped_column(String(32))
    """Machine id of the host; null: unknown."""
    boot_id: Mapped[str | None] = mapped_column(Text)
    dir: Mapped[str | None] = mapped_column(Text)
    command: Mapped[Stop | None]
    """Command that the watcher gets with its next telemetry."""
    preflight: Mapped[dict[str, Any] | None]
    model: Mapped[dict[str, Any] | None]
    exit: Mapped[dict[str, Any] | None]
    sizes: Mapped[dict[str, Any]]
    """With the end: rank → bytes that judgement waits for."""
    findings_expected: Mapped[int] = mapped_column(BigInteger, default=0)
    promised: Mapped[Promised | None]
    """With the end: what judgement waits for."""
    created_at: Mapped[float] = mapped_column(Seconds)
    claimed_at: Mapped[float | None] = mapped_column(Seconds)
    started_at: Mapped[float | None] = mapped_column(Seconds)
    ended_at: Mapped[float | None] = mapped_column(Seconds)


class ProgressRow(Table):
    """What telemetry says about a run, apart from its row: written often, locked by itself."""

    __tablename__ = "progress"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    heard: Mapped[int] = mapped_column(BigInteger, default=0)
    """Grows with every sign of life; the conductor times its growth by its own clock."""
    heard_at: Mapped[float | None] = mapped_column(Seconds)
    waited_until: Mapped[float | None] = mapped_column(Seconds)
    """When its worker last reported that a scheduler lets it wait."""
    heartbeat_at: Mapped[float | None] = mapped_column(Seconds)
    lines: Mapped[int] = mapped_column(BigInteger, default=0)
    late_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    """Lines that came after the end: counted, not obeyed."""
    backlog_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    loss: Mapped[str | None] = mapped_column(String(40))
    toks_per_s: Mapped[float | None] = mapped_column(Seconds)
    identity: Mapped[dict[str, Any] | None]
    near: Mapped[dict[str, Any] | None]
    """Detector → how near it is to its limit (`gonogo.contract.nearness.Near`)."""


class AccountRow(Table):
    """Parts of a run's time, as far as its account has been taken; `seconds` by part of it."""

    __tablename__ = "accounts"
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int | None] = mapped_column(Integer)
    """The rank whose lines were read; null: none is here."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    """Up to which byte of that rank's file."""
    told: Mapped[dict[str, Any]]
    """What the lines came to (`gonogo.goodput.rank_account.RankAccount`)."""
    at: Mapped[float] = mapped_column(Seconds)
    """When it was taken."""
    closed: Mapped[bool] = mapped_column(Boolean)
    """Whether nothing more will come of its lines."""
    devices: Mapped[int] = mapped_column(Integer)
    productive_s: Mapped[float] = mapped_column(Seconds)
    preserved_s: Mapped[float] = mapped_column(Seconds)
    queue_s: Mapped[float] = mapped_column(Seconds)
    start_s: Mapped[float] = mapped_column(Seconds)
    restart_s: Mapped[float] = mapped_column(Seconds)
    evaluation_s: Mapped[float] = mapped_column(Seconds)
    checkpoint_s: Mapped[float] = mapped_column(Seconds)
    between_steps_s: Mapped[float] = mapped_column(Seconds)
    stall_s: Mapped[float] = mapped_column(Seconds)
    halt_s: Mapped[float] = mapped_column(Seconds)
    repeated_s: Mapped[float] = mapped_column(Seconds)
    decision_s: Mapped[float] = mapped_column(Seconds)
    unknown_s: Mapped[float] = mapped_column(Seconds)


class DecisionRow(Table):
    """One decision; `document` is the whole of it."""

    __tablename__ = "decisions"
    __table_args__ = (UniqueConstraint("experiment", "seq"),)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(Integer)
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
    run: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[Attempt]
    rules: Mapped[str] = mapped_column(Text)
    facts: Mapped[str] = mapped_column(Text)


class SpeedRow(Table):
    """How fast the fastest run of one work was."""

    __tablename__ = "speeds"
    work: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Digest of what an order says of it."""
    step_s: Mapped[float] = mapped_column(Seconds)
    run: Mapped[str] = mapped_column(Id)


class ConditionRow(Table):
    """One condition, as the decisions so far leave it (they are the truth, this is a view)."""

    __tablename__ = "conditions"
    experiment: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    phase: Mapped[str] = mapped_column(String(64))
    n: Mapped[int] = mapped_column(Integer)
    state: Mapped[ConditionState]
    document: Mapped[dict[str, Any]]
