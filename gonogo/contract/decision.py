"""What was decided, on which evidence, by which rules? A recorded verdict.

Append-only and hash-chained per experiment: `prev_hash` is the hash of the decision before it,
`hash` the digest of the decision without `hash`. Each is also a self-contained file, from which
`gonogo replay` comes to the same digests without any service.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.canonical import digest
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.wire import Recorded


class Verdict(StrEnum):
    """Judgement of a run, a phase or an experiment."""

    GO = "GO"
    CONDITIONAL_GO = "CONDITIONAL_GO"
    NO_GO = "NO_GO"
    INCONCLUSIVE = "INCONCLUSIVE"


class CriterionOutcome(StrEnum):
    """Outcome of a criterion: fail > error > inconclusive > pass."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


class DecisionKind(StrEnum):
    """Who or what decided."""

    AUTO = "auto"
    HUMAN = "human"
    CONDITION = "condition"


class ConditionState(StrEnum):
    """State of a condition."""

    OPEN = "open"
    MET = "met"
    MISSED = "missed"
    WAIVED = "waived"


class CriterionResult(Recorded):
    """One criterion of a gate, with what it saw."""

    id: str
    severity: GateSeverity
    outcome: CriterionOutcome
    observed: Any = None
    threshold: Any = None
    window: str | None = None
    """Which steps were looked at, such as `6..40`."""
    samples: int | None = None
    evidence: str = ""
    """One sentence: what was compared, or what is missing."""


class Condition(Recorded):
    """A condition of a CONDITIONAL_GO."""

    id: str
    text: str
    criterion: str
    evidence_from: str | None = None
    """Phase whose run can meet it; null in the last phase: only a person can waive it."""
    due: str | None = None
    """Phase that it guards, or `end`."""
    on_miss: str = "no_go"
    state: ConditionState = ConditionState.OPEN


class Decision(Recorded):
    """A decision as recorded."""

    id: str
    seq: int
    experiment: str
    phase: str | None = None
    run: str | None = None
    kind: DecisionKind
    verdict: Verdict | None
    criteria: list[CriterionResult] = Field(default_factory=list)
    conditions: list[Condition] = Field(default_factory=list)
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

    def content_hash(self) -> str:
        """Return the digest of everything but `hash`."""
        return digest(self.model_dump(mode="json", exclude={"hash"}))

    def sealed(self) -> "Decision":
        """Return this decision with its `hash` set."""
        return self.model_copy(update={"hash": self.content_hash()})
