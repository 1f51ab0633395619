"""What was decided, on which evidence, by which rules? A recorded verdict.

Append-only and hash-chained per experiment: `prev_hash` is the hash of the decision before it,
`hash` the digest of the recorded document without `hash` and `signature`, fields that nobody knows
included, and `signature` that of the home whose key `key_id` names. Each is also a self-contained
file, from which `gonogo replay` comes to the same digests without any service. This model is a
view of the document; digests are never taken over it (`gonogo.ledger.recorded`).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.doubt import Doubt
from gonogo.contract.provenance import MadeBy
from gonogo.contract.wire import Recorded


class Verdict(StrEnum):
    """Judgement of a run, a phase or an experiment."""

    GO = "GO"
    CONDITIONAL_GO = "CONDITIONAL_GO"
    NO_GO = "NO_GO"
    INCONCLUSIVE = "INCONCLUSIVE"


PASSING = (Verdict.GO, Verdict.CONDITIONAL_GO)
"""Verdicts by which a phase goes on."""


def worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the worst of several verdicts, or None of none."""
    order = (Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.CONDITIONAL_GO, Verdict.GO)
    found = set(verdicts)
    return next((verdict for verdict in order if verdict in found), None)


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


class Cause(Recorded):
    """Why a verdict is not GO, in words: under the hash of its decision, and deciding nothing."""

    text: str
    """One sentence: the halt finding, else how the run ended, else the first bad criterion."""
    rank: int | None = None
    """The rank that is to blame, where one is."""
    log: str | None = None
    """The log that says most: the guilty rank's, else the launcher's."""
    line: str | None = None
    """The last line of that log that says something, printable and at most 300 characters."""
    unknown: bool = False
    """Whether the run failed in a way that no diagnosis fits; not a hang with a named rank."""
    look: list[str] = Field(default_factory=list)
    """Where to look if no diagnosis fits, the most telling first."""

    def told(self) -> str:
        """Return it as one line."""
        text = f"unknown failure: {self.text}" if self.unknown else self.text
        return f"{text}; last line of {self.log}: {self.line}" if self.line else text


DECISION_V = 3
"""Version of the recorded form."""


class Decision(Recorded):
    """A decision as recorded."""

    v: int = DECISION_V
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
    made_by: MadeBy
    """The code that decided it."""
    prev_hash: str | None = None
    hash: str = ""
    actor: str
    reason: str | None = None
    at: str
    supersedes: str | None = None
    weakened: list[Doubt] = Field(default_factory=list)
    """What weakens the watch or the gate of its order."""
    cause: Cause | None = None
    """Why the verdict is not GO; left out of the document where it is, or where nobody said."""
    never_ran: list[str] = Field(default_factory=list)
    """Of a person's verdict on a finished experiment: the phases that never ran; left out when
    there is none."""
    key_id: str | None = None
    """Which key signed it; null for one that no service recorded."""
    signature: str | None = None
    """Ed25519 over `hash`, base64."""

    @property
    def by_hand(self) -> bool:
        """Whether a person's word makes it what it is: a verdict, or a condition waived."""
        return self.kind is DecisionKind.HUMAN or bool(self.waives)

    @property
    def waives(self) -> list[str]:
        """The conditions that a person waives by it; what a plan waives no person does."""
        rows = self.conditions if self.kind is DecisionKind.CONDITION else ()
        return [row.id for row in rows if row.state is ConditionState.WAIVED]
