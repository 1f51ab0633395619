"""The base of all tables, and how columns hold enums and documents."""

from typing import Any

from sqlalchemy import JSON, Float, MetaData, String
from sqlalchemy.orm import DeclarativeBase

from gonogo.contract.api import CampaignState, DeliveryState, OriginView
from gonogo.contract.comparison import Comparison
from gonogo.contract.decision import Cause, ConditionState, DecisionKind, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import CarriedRemedy, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.judge.follow_up.action import Attempt
from service.db.columns import Held, OneOf
from service.db.documents import Asked, Awaited, ClaimKept, Promised, Stop

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
Id = String(40)
Seconds = Float(53)

WORDS = (
    *(CampaignState, ExperimentState, PhaseState, RunState, RunReason),
    *(Verdict, DecisionKind, ConditionState, DeliveryState),
)
"""Enums that a column holds the value of."""
DOCUMENTS = (
    *(Asked, Stop, Awaited, Promised, ClaimKept),
    *(Cause, Comparison, OriginView, Outcome, ResumePoint, Attempt),
)
"""Models that a column holds as JSON.

What is kept as a worker or a plan wrote it (orders, records, plans) stays a JSON
object: a model would drop what a newer release put there.
"""
_KINDS: dict[Any, Any] = {
    **dict.fromkeys((dict[str, Any], dict[str, str], list[str]), JSON(none_as_null=True)),
    **{words: OneOf(words) for words in WORDS},
    **{model: Held(model) for model in DOCUMENTS},
    list[CarriedRemedy]: Held(list[CarriedRemedy]),
}


class Table(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = _KINDS
