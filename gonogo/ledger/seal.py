"""Appending a decision to the chain of its experiment.

An `Entry` holds what was decided: by the judge (`judged`), by a person or about conditions.
`append` adds its place, digests, hash and signature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import digest, wire_value
from gonogo.contract.decision import (
    Cause,
    Condition,
    CriterionResult,
    Decision,
    DecisionKind,
    MadeBy,
    Verdict,
)
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Doubt
from gonogo.contract.order import Rules
from gonogo.judge.gate.verdict import Judgement
from gonogo.ledger.recorded import RecordedDecision, record_of, rule_digest
from gonogo.ledger.sign import SigningKey
from gonogo.watch.registry import made_by

SERVICE_ACTOR = "gonogo"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What was decided, before it has a place in a chain."""

    kind: DecisionKind
    verdict: Verdict | None
    criteria: Sequence[CriterionResult] = ()
    conditions: Sequence[Condition] = ()
    diagnosis: str | None = None
    rules: Json = field(default_factory=dict)
    facts: Json = field(default_factory=dict)
    actor: str = SERVICE_ACTOR
    reason: str | None = None
    weakened: Sequence[Doubt] = ()
    cause: Cause | None = None
    never_ran: Sequence[str] = ()
    made_by: MadeBy = field(default_factory=made_by)


def judged(
    judgement: Judgement,
    rules: Rules,
    facts: Facts,
    *,
    actor: str = SERVICE_ACTOR,
    reason: str | None = None,
    cause: Cause | None = None,
) -> Entry:
    """Return what the judge decided."""
    return Entry(
        kind=DecisionKind.AUTO,
        verdict=judgement.verdict,
        criteria=judgement.criteria,
        conditions=judgement.conditions,
        diagnosis=judgement.diagnosis,
        rules=rules.wire(),
        facts=facts.wire(),
        actor=actor,
        reason=reason,
        weakened=judgement.weakened,
        cause=cause,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a decision in a chain, and what it is about."""

    id: str
    seq: int = 1
    """1, 2, … within the experiment."""
    experiment: str
    phase: str | None
    run: str | None
    at: str
    """RFC 3339 UTC."""
    prev_hash: str | None = None
    """Hash of the experiment's decision before this one."""
    supersedes: str | None = None
    """Id of the decision that this one replaces."""


def append(
    entry: Entry, place: Place, key: SigningKey | None, *, more: Json | None = None
) -> RecordedDecision:
    """Return the recorded decision that an entry is at its place.

    Args:
        key: the home's; None for a decision that nobody records, which is unsigned.
        more: fields beside those of a decision; they are under the hash, too.
    """
    said = {name: getattr(row, name) for row in (entry, place) for name in row.__slots__}
    decision = Decision(
        **said,
        rule_digest=rule_digest(entry.rules),
        facts_digest=digest(entry.facts),
        key_id=key.key_id if key is not None else None,
    )
    document: dict[str, Any] = {**decision.wire(), **wire_value(dict(more or {}))}
    document["hash"] = record_of(document).content_hash()
    if key is not None:
        document["signature"] = key.sign(document["hash"])
    return record_of(document)
