"""What was judged, by what, and what is still open of it?"""

from typing import Any

from sqlalchemy import (
    ForeignKey,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import (
    Mapped,
    mapped_column,
)

from gonogo.contract.decision import (
    Cause,
    ConditionState,
    DecisionKind,
    Verdict,
)
from gonogo.judge.course.action import Attempt
from service.db.schema.table import Id, Seconds, Table


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
