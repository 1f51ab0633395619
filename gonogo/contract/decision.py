"""A recorded verdict: what was decided, on which evidence, by which rules.

Decisions are append-only and hash-chained per experiment. `prev_hash` is the hash of the decision
before. `hash` covers the whole recorded document without `hash` and `signature`. Each decision is
also a file, from which `gonogo replay` computes the same digests without a service. This model is a
view; digests are taken over the document itself (`gonogo.ledger.recorded`).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Self

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.finding import Doubt
from gonogo.contract.wire import Recorded

READS_BEFORE = "commit a2d12bc9 reads what was recorded before"


class MadeBy(Recorded):
    """The code that made an order or a decision."""

    gonogo: str
    sources: str  # SHA-256 over the sources that judge (`gonogo.watch.registry`).
    commit: str | None = None
    packages: dict[str, str] = {}

    def is_same_code(self, other: Self) -> bool:
        """Whether both judge alike; commits may differ in other files."""
        return self.model_copy(update={"commit": other.commit}) == other

    def words(self) -> str:
        """Return it for a sentence."""
        with_ = "".join(f", {name} {version}" for name, version in self.packages.items())
        return f"gonogo {self.gonogo} (sources {self.sources[:12]}{with_})"


class Verdict(StrEnum):
    """Verdict on a run, a phase or an experiment."""

    GO = "GO"
    CONDITIONAL_GO = "CONDITIONAL_GO"
    NO_GO = "NO_GO"
    INCONCLUSIVE = "INCONCLUSIVE"


PASSING = (Verdict.GO, Verdict.CONDITIONAL_GO)  # Verdicts that let the next phase begin.


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
    """Kind of a decision."""

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
    window: str | None = None  # Measured steps, such as `6..40`.
    samples: int | None = None
    evidence: str = ""


class Condition(Recorded):
    """A condition of a CONDITIONAL_GO."""

    id: str
    text: str
    criterion: str
    evidence_from: str | None = None  # Phase whose run can meet it; null: a person waives it.
    due: str | None = None
    on_miss: str = "no_go"
    state: ConditionState = ConditionState.OPEN


class Cause(Recorded):
    """Why a verdict is not GO, in words."""

    text: str  # One sentence: the halt finding, else the run's end, else the first bad criterion.
    rank: int | None = None
    log: str | None = None  # The culprit's log, else the launcher's.
    line: str | None = None  # The last meaningful line of that log, at most 300 characters.
    unknown: bool = False  # Whether no diagnosis fits the failure.
    look: list[str] = []  # Places to look at then, the most useful first.

    def told(self) -> str:
        """Return it on one line."""
        text = f"unknown failure: {self.text}" if self.unknown else self.text
        return f"{text}; last line of {self.log}: {self.line}" if self.line else text


DECISION_V = 3


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
    criteria: list[CriterionResult] = []
    conditions: list[Condition] = []
    diagnosis: str | None = None
    rules: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    rule_digest: str
    facts_digest: str
    made_by: MadeBy
    prev_hash: str | None = None
    hash: str = ""
    actor: str
    reason: str | None = None
    at: str
    supersedes: str | None = None
    weakened: list[Doubt] = []
    cause: Cause | None = None
    never_ran: list[str] = []  # Phases that never ran, for a verdict by a person.
    key_id: str | None = None
    signature: str | None = None  # Ed25519 over `hash`, base64.

    @property
    def by_hand(self) -> bool:
        """Whether a person decided: a verdict, or a waived condition."""
        return self.kind is DecisionKind.HUMAN or bool(self.waives)

    @property
    def waives(self) -> list[str]:
        """The conditions that a person waives by it."""
        rows = self.conditions if self.kind is DecisionKind.CONDITION else ()
        return [row.id for row in rows if row.state is ConditionState.WAIVED]
