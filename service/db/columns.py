"""The base of all tables, and columns that hold enums as their values and models as JSON."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field, TypeAdapter
from sqlalchemy import JSON, Dialect, Float, MetaData, String
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from gonogo.contract.api import CampaignState, DeliveryState, OriginView
from gonogo.contract.campaign import Comparison
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import Cause, ConditionState, DecisionKind, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import CarriedRemedy, ResumePoint, RunReason
from gonogo.contract.outcome import Outcome
from gonogo.contract.records import ExitRecord
from gonogo.contract.wire import Recorded
from gonogo.contract.worker_messages import ClaimRequest
from gonogo.judge.follow_up.decide import Attempt


class StopKind(StrEnum):
    """How an operator stops an experiment."""

    HALT = "halt"
    """With a checkpoint; then a decision is awaited."""
    CANCEL = "cancel"
    """For good."""


class Asked(Recorded):
    """What an operator asked, and why."""

    reason: str = ""
    actor: str = ""

    def told(self) -> str:
        """Return it as `actor: reason`, the actor alone where no reason was given."""
        return f"{self.actor}: {self.reason}" if self.reason else self.actor


class Stop(Asked):
    """An operator's word that an experiment stops."""

    kind: StopKind
    asked_at: float | None = None
    """Unix seconds; null: unknown."""
    again: bool = False
    """Whether it was asked a second time: the run is waited for no longer."""


class AwaitedKind(StrEnum):
    """What a person is asked for."""

    APPROVAL = "approval"
    DECISION = "decision"


class Awaited(Recorded):
    """What an experiment waits for."""

    kind: AwaitedKind
    phase: str
    """The phase that was judged."""
    text: str
    following: str | None = None
    """For an approval: the phase that comes next; null in one from before they were conditions."""
    asked_at: float | None = None
    """For an approval: Unix seconds."""
    expires_s: float | None = None
    """For an approval: how long it can be given; null: for ever."""


class Promised(Recorded):
    """What the end of a run says was written; judgement waits until all of it is here."""

    files: dict[str, int] = Field(default_factory=dict)
    """Growing file → bytes."""
    records: dict[str, str] = Field(default_factory=dict)
    """Path of a small record → SHA-256."""


class ServiceEnd(ExitRecord):
    """The end of a run that the control plane wrote: no worker reported one, or none ever will."""

    by_service: bool = True


def is_by_service(exit_record: Mapping[str, Any] | None) -> bool:
    """Say whether an end, as a run's row keeps it, is a `ServiceEnd`."""
    return exit_record is not None and bool(exit_record.get("by_service"))


class SessionKind(StrEnum):
    """What a browser holds."""

    LINK = "link"
    """A one-time link to a session."""
    SESSION = "session"


class OneOf(TypeDecorator[StrEnum]):
    """A column that holds the value of an enum."""

    impl = String
    cache_ok = True

    def __init__(self, words: type[StrEnum], length: int = 20) -> None:
        super().__init__(length)
        self.words = words

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return what is stored; a value may be given as its text."""
        return None if value is None else self.words(value).value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a word of a value, for as many rows as a list has: a look-up alone."""
        given: dict[str | None, StrEnum | None] = {word.value: word for word in self.words}
        given[None] = None
        return given.__getitem__


class Held(TypeDecorator[Any]):
    """A column that holds a model or a dataclass as JSON; None is NULL."""

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what is stored."""
        if value is None:
            return None
        return wire_value(self._adapter.dump_python(value, mode="json", by_alias=True))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a model of a value; it raises ValidationError for any other value."""
        read = self.impl_instance.result_processor(dialect, coltype)
        validate = self._adapter.validate_python

        def process(value: Any) -> Any:
            if value is not None and read is not None:
                value = read(value)
            return None if value is None else validate(value)

        return process


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
    *(Asked, Stop, Awaited, Promised, ClaimRequest),
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
