"""What a detector found, how near it is to its limit, and what is doubtful (docs/doubts.md).

Code matches on the kind of a doubt; `gonogo.judge.words` turns it into a sentence.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_serializer
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from gonogo.contract.heartbeat import Count
from gonogo.contract.records import ProcessState
from gonogo.contract.wire import Number, Recorded


class Effect(StrEnum):
    """What a doubt does to the verdict."""

    NONE = "none"  # It is listed.
    COVERAGE = "coverage"  # The criterion `coverage` is inconclusive.
    WATCH = "no_halt_finding"  # The criterion `no_halt_finding` is inconclusive.
    WEAK = "watch_ceiling"  # It is a condition of this name.


class DoubtKind(StrEnum):
    """What is doubtful, and what that does to the verdict."""

    effect: Effect

    def __new__(cls, value: str, effect: Effect) -> Self:
        """Return the member of a value, with its effect."""
        member = str.__new__(cls, value)
        member._value_, member.effect = value, effect
        return member

    # not observed
    RECORD_MISSING = "record_missing", Effect.NONE
    RANK_SILENT = "rank_silent", Effect.NONE
    NODE_UNOBSERVED = "node_unobserved", Effect.NONE
    OBSERVER_FAILED = "observer_failed", Effect.NONE
    DETECTOR_BLIND = "detector_blind", Effect.NONE
    METRIC_MISSING = "metric_missing", Effect.NONE
    PREDECESSOR = "predecessor", Effect.NONE
    EARLIER_STEPS = "earlier_steps", Effect.NONE
    STEPS_REPEATED = "steps_repeated", Effect.NONE
    WEIGHTS_UNKNOWN = "weights_unknown", Effect.NONE
    IDENTITY_UNVERIFIED = "identity_unverified", Effect.NONE
    LEARNING_UNCLEAR = "learning_unclear", Effect.NONE
    # an order whose watch is weaker than usual
    SETTING_LOOSER = "setting_looser", Effect.NONE
    DETECTOR_WEAKENED = "detector_weakened", Effect.NONE
    FAULT_INJECTED = "fault_injected", Effect.NONE
    FAULTS_ALLOWED = "faults_allowed", Effect.NONE
    # what a replay or a verification cannot check
    NOT_JUDGED = "not_judged", Effect.NONE
    UNSIGNED = "unsigned", Effect.NONE
    CHAIN_UNCHECKED = "chain_unchecked", Effect.NONE
    DECISION_MISSING = "decision_missing", Effect.NONE
    NO_DECISION = "no_decision", Effect.NONE
    RUN_UNDECIDED = "run_undecided", Effect.NONE
    OTHER_KEY = "other_key", Effect.NONE
    END_UNSEEN = "end_unseen", Effect.NONE
    # what weakens a comparison
    SINGLE_RUN = "single_run", Effect.NONE
    RUNS_ALIKE = "runs_alike", Effect.NONE
    STEPS_DIFFER = "steps_differ", Effect.NONE
    VARIANT_GIVEN_UP = "variant_given_up", Effect.NONE
    MANY_LOOKS = "many_looks", Effect.NONE
    # records that cannot be read, or are not what they were
    UNREADABLE = "unreadable", Effect.COVERAGE
    SEAL_BROKEN = "seal_broken", Effect.COVERAGE
    # records that contradict each other
    NOT_ORDERED = "not_ordered", Effect.COVERAGE
    TWO_WRITERS = "two_writers", Effect.COVERAGE
    OTHER_RUN = "other_run", Effect.COVERAGE
    IDENTITY_CHANGED = "identity_changed", Effect.COVERAGE
    EXIT_DIFFERS = "exit_differs", Effect.COVERAGE
    CLOCKS_DIFFER = "clocks_differ", Effect.COVERAGE
    IMPOSSIBLE_NUMBER = "impossible_number", Effect.COVERAGE
    DEVICES_DIFFER = "devices_differ", Effect.COVERAGE
    # training that cannot have changed the model
    NOTHING_LEARNED = "nothing_learned", Effect.COVERAGE
    RANKS_APART = "ranks_apart", Effect.COVERAGE
    # the record of the watch
    WATCH_BROKEN = "watch_broken", Effect.WATCH
    WATCH_GAP = "watch_gap", Effect.WATCH
    LINES_CHANGED = "lines_changed", Effect.WATCH
    LINES_UNWATCHED = "lines_unwatched", Effect.WATCH
    FILE_UNWATCHED = "file_unwatched", Effect.WATCH
    FINDING_DIFFERS = "finding_differs", Effect.WATCH
    DETECTOR_FAILED = "detector_failed", Effect.WATCH
    # an order whose watch or gate is too weak
    SETTING_BEYOND = "setting_beyond", Effect.WEAK
    SETTING_FOREIGN = "setting_foreign", Effect.WEAK
    DETECTOR_DISARMED = "detector_disarmed", Effect.WEAK
    CHECKS_LEFT_OUT = "checks_left_out", Effect.WEAK
    GATE_EMPTY = "gate_empty", Effect.WEAK


IN_WEIGHTS = frozenset({DoubtKind.NOTHING_LEARNED, DoubtKind.RANKS_APART})
"""Inherited with the checkpoint."""


class Doubt(Recorded):
    """One doubt."""

    kind: DoubtKind
    rank: int | None = None
    step: int | None = None
    name: str | None = None
    """The file, field, setting, metric, detector, node or variant in question."""
    expected: JsonValue = None
    found: JsonValue = None

    @model_serializer(mode="wrap")
    def _only_known(self, handler: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return {name: value for name, value in handler(self).items() if value is not None}

    @property
    def effect(self) -> Effect:
        """Its effect on the verdict."""
        return self.kind.effect


Held = Annotated[ProcessState | None, Field(exclude_if=lambda state: state is None)]
"""State in which a process did nothing; left out of a document if it was not held."""


class Severity(StrEnum):
    """Weight of a finding; only the first `halt` ends a run."""

    INFO = "info"
    SUSPECT = "suspect"
    WARN = "warn"
    HALT = "halt"


class Source(StrEnum):
    """Where the threshold of a finding came from."""

    DEFAULT = "default"
    PROFILE = "profile"
    PLAN = "plan"
    ADAPTIVE = "adaptive"


class Act(StrEnum):
    """What a halt does, and when."""

    NOW = "now"
    AT_CHECKPOINT = "at_checkpoint"
    """After the next durable checkpoint. `value` is the time left, and the wait ends after half."""
    PAGE = "page"  # Nothing ends; a person is alerted.
    GATE = "gate"  # Nothing ends: the detector only warns, and the gate judges.


class Finding(Recorded):
    """One finding; idempotent by `key`, which carries the attempt."""

    v: Count = 1
    detector: str
    severity: Severity
    rank: Count | None = None
    section: str | None = None
    step: Count | None = None
    value: Number | None = None
    threshold: Number | None = None
    source: Source = Source.DEFAULT
    since: float | None = None  # Unix seconds; for a stall the last line that advanced the step.
    at: float
    key: str
    act: Act | None = None
    held: Held = None
    evidence: list[str] = []
    text: str


class Near(Recorded):
    """Distance of one detector to its limit, on the nearest rank."""

    value: Number | None = None
    limit: Number | None = None
    unit: str = ""  # `s`, `steps`, `MB` or `tokens/s`; empty for a ratio.
    below: bool = False  # Whether it acts when the value falls below the limit.
    time_left_s: float | None = None  # Seconds until the limit is reached if nothing changes.
    blind: str | None = None

    @classmethod
    def in_time(cls, seconds: float, limit_s: float | None) -> Self:
        """Return the distance of a duration to its limit."""
        value = max(0.0, seconds)
        left_s = None if limit_s is None else max(0.0, limit_s - value)
        return cls(value=value, limit=limit_s, unit="s", time_left_s=left_s)

    @property
    def share(self) -> float | None:
        """Return how much of the way to the limit is used; 1.0 at the limit."""
        if self.value is None or self.limit is None:
            return None
        part, whole = (self.limit, self.value) if self.below else (self.value, self.limit)
        return part / whole if whole > 0.0 else None
