"""What was a decision of release 0.1, to the last field? Its hash is the digest of this model."""

from typing import Any

from pydantic import Field, ValidationError

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Corrupt
from gonogo.contract.wire import Recorded
from gonogo.ledger.v1.rules import Json


class _Result(Recorded):
    id: str
    severity: str
    outcome: str
    observed: Any = None
    threshold: Any = None
    window: str | None = None
    samples: int | None = None
    evidence: str = ""


class _Condition(Recorded):
    id: str
    text: str
    criterion: str
    evidence_from: str | None = None
    due: str | None = None
    on_miss: str = "no_go"
    state: str = "open"


class DecisionV1(Recorded):
    """A decision as release 0.1 recorded it."""

    id: str
    seq: int
    experiment: str
    phase: str | None = None
    run: str | None = None
    kind: str
    verdict: str | None
    criteria: list[_Result] = Field(default_factory=list)
    conditions: list[_Condition] = Field(default_factory=list)
    diagnosis: str | None = None
    rules: dict[str, Any] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    rule_digest: str
    facts_digest: str
    judge_version: int
    prev_hash: str | None = None
    hash: str = ""
    actor: str
    reason: str | None = None
    at: str
    supersedes: str | None = None


def as_recorded(document: Json) -> dict[str, Any]:
    """Return the fields that release 0.1 recorded, in its form.

    Raises:
        Corrupt: it is no decision of release 0.1.
    """
    try:
        return DecisionV1.model_validate(document).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"not a decision of version 1: {where}: {first['msg']}") from error


def content_hash(document: Json) -> str:
    """Return the digest of everything that release 0.1 recorded but `hash`."""
    return digest({name: row for name, row in as_recorded(document).items() if name != "hash"})
