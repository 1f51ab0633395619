"""Documents of columns that no message carries: what was asked, awaited and promised."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.records import ExitRecord
from gonogo.contract.wire import Recorded


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
