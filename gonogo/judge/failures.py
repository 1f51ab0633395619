"""The library of failures: recognise the error of a run, and explain a diagnosis.

`failures.yaml` beside this file holds the rows; it is read once, at the first failure. Which
failure a run shows is decided when its facts are built (`Facts.failure`), so that a replay gives
the same diagnosis under a later library.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import Field, field_validator

from gonogo.contract.decision import Decision
from gonogo.contract.outcome import FailureName, FailureRow, Pattern, RecordedFailure
from gonogo.contract.wire import Submitted


class FailureClass(StrEnum):
    """Person who can mend a failure."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    DATA = "data"


class Failure(Submitted):
    """One row of the library."""

    name: FailureName
    pattern: list[Pattern] = Field(default_factory=list)
    """Searched in each line of an error; none: a halt or an exit code names it."""
    cause: str
    remedy: str
    remedy_nsa: str = ""
    patch: dict[str, Any] = Field(default_factory=dict)
    """`env` and `train` settings that answer it; empty when only a person can."""
    klass: FailureClass = Field(alias="class")
    retry: bool
    generic: bool = False
    """Whether it counts only where no other row fits."""
    victim: bool = False
    """Whether a rank says this that waited for another."""
    source: str = ""
    example: str = ""

    @field_validator("pattern", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def told(self, *, ours: bool) -> str:
        """Return the remedy; of nsa.train with its own settings."""
        more = f". For nsa.train: {self.remedy_nsa}" if ours and self.remedy_nsa else ""
        return f"{self.remedy}{more}"


@dataclass(frozen=True, slots=True)
class Match:
    """A failure and the line that shows it."""

    name: str
    line: str
    victim: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a diagnosis means."""

    name: str
    cause: str
    remedy: str


@cache
def library() -> Mapping[str, Failure]:
    """Return the rows of failures.yaml by name, in their order; read once."""
    text = resources.files("gonogo.judge").joinpath("failures.yaml").read_text("utf-8")
    rows = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {row.name: row for row in map(Failure.model_validate, rows)}


@cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in patterns), re.IGNORECASE)


def find_failure(lines: Sequence[str], added: Iterable[FailureRow] = ()) -> Match | None:
    """Return the failure that the lines of an error show; None: none is known."""
    for own in added:
        found = next((line for line in lines if _compiled((own.pattern,)).search(line)), None)
        if found is not None:
            return Match(own.name, found)
    rows = [row for row in library().values() if row.pattern]
    for generic in (False, True):
        for line in lines:
            for row in rows:
                if row.generic is generic and _compiled(tuple(row.pattern)).search(line):
                    return Match(row.name, line, row.victim)
    return None


def explain(
    name: str, added: Iterable[FailureRow] = (), *, ours: bool = False
) -> Explanation | None:
    """Return cause and remedy of a diagnosis; None: neither the library nor the plan knows it."""
    for row in added:
        if row.name == name:
            return Explanation(name, row.cause, row.remedy)
    known = library().get(name)
    return None if known is None else Explanation(name, known.cause, known.told(ours=ours))


def explain_decision(decision: Decision) -> Explanation | None:
    """Return cause and remedy of the diagnosis of a decision, by its own rules and facts."""
    if decision.diagnosis is None:
        return None
    said = decision.facts.get("identity", {}).values()
    ours = any(row.get("groups") is not None for row in said)
    added = map(RecordedFailure.model_validate, decision.rules.get("failures", ()))
    return explain(decision.diagnosis, added, ours=ours)
