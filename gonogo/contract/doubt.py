"""Typed doubts about a run, an order, a decision or a comparison (docs/doubts.md).

Code matches on `kind`; `gonogo.judge.words` turns a doubt into a sentence.
"""

from enum import StrEnum

from pydantic import JsonValue, model_serializer
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from gonogo.contract.wire import Recorded


class DoubtKind(StrEnum):
    """What is doubtful; the group decides the effect (`EFFECTS`)."""

    # not observed
    RECORD_MISSING = "record_missing"
    RANK_SILENT = "rank_silent"
    NODE_UNOBSERVED = "node_unobserved"
    OBSERVER_FAILED = "observer_failed"
    DETECTOR_BLIND = "detector_blind"
    METRIC_MISSING = "metric_missing"
    PREDECESSOR = "predecessor"
    EARLIER_STEPS = "earlier_steps"
    STEPS_REPEATED = "steps_repeated"
    WEIGHTS_UNKNOWN = "weights_unknown"
    IDENTITY_UNVERIFIED = "identity_unverified"
    LEARNING_UNCLEAR = "learning_unclear"
    # an order whose watch is weaker than usual
    SETTING_LOOSER = "setting_looser"
    DETECTOR_WEAKENED = "detector_weakened"
    FAULT_INJECTED = "fault_injected"
    FAULTS_ALLOWED = "faults_allowed"
    # what a replay or a verification cannot check
    NOT_JUDGED = "not_judged"
    UNSIGNED = "unsigned"
    CHAIN_UNCHECKED = "chain_unchecked"
    DECISION_MISSING = "decision_missing"
    NO_DECISION = "no_decision"
    RUN_UNDECIDED = "run_undecided"
    OTHER_KEY = "other_key"
    END_UNSEEN = "end_unseen"
    # what weakens a comparison
    SINGLE_RUN = "single_run"
    RUNS_ALIKE = "runs_alike"
    STEPS_DIFFER = "steps_differ"
    VARIANT_GIVEN_UP = "variant_given_up"
    MANY_LOOKS = "many_looks"
    # records that cannot be read, or are not what they were
    UNREADABLE = "unreadable"
    SEAL_BROKEN = "seal_broken"
    # records that contradict each other
    NOT_ORDERED = "not_ordered"
    TWO_WRITERS = "two_writers"
    OTHER_RUN = "other_run"
    IDENTITY_CHANGED = "identity_changed"
    EXIT_DIFFERS = "exit_differs"
    CLOCKS_DIFFER = "clocks_differ"
    IMPOSSIBLE_NUMBER = "impossible_number"
    DEVICES_DIFFER = "devices_differ"
    # training that cannot have changed the model
    NOTHING_LEARNED = "nothing_learned"
    RANKS_APART = "ranks_apart"
    # the record of the watch
    WATCH_BROKEN = "watch_broken"
    WATCH_GAP = "watch_gap"
    LINES_CHANGED = "lines_changed"
    LINES_UNWATCHED = "lines_unwatched"
    FILE_UNWATCHED = "file_unwatched"
    FINDING_DIFFERS = "finding_differs"
    DETECTOR_FAILED = "detector_failed"
    # an order whose watch or gate is too weak
    SETTING_BEYOND = "setting_beyond"
    SETTING_FOREIGN = "setting_foreign"
    DETECTOR_DISARMED = "detector_disarmed"
    CHECKS_LEFT_OUT = "checks_left_out"
    GATE_EMPTY = "gate_empty"


class Effect(StrEnum):
    """What a doubt does to the verdict."""

    NONE = "none"
    """It is listed."""
    COVERAGE = "coverage"
    """The criterion `coverage` is inconclusive."""
    WATCH = "no_halt_finding"
    """The criterion `no_halt_finding` is inconclusive."""
    WEAK = "watch_ceiling"
    """It is a condition of this name."""


_KINDS = tuple(DoubtKind)
_LISTED = _KINDS[: _KINDS.index(DoubtKind.UNREADABLE)]
_WATCH = _KINDS[_KINDS.index(DoubtKind.WATCH_BROKEN) :]
_WEAK = _KINDS[_KINDS.index(DoubtKind.SETTING_BEYOND) :]

EFFECTS: dict[DoubtKind, Effect] = {
    **dict.fromkeys(_KINDS, Effect.COVERAGE),
    **dict.fromkeys(_LISTED, Effect.NONE),
    **dict.fromkeys(_WATCH, Effect.WATCH),
    **dict.fromkeys(_WEAK, Effect.WEAK),
}

IN_WEIGHTS = frozenset({DoubtKind.NOTHING_LEARNED, DoubtKind.RANKS_APART})
"""Kinds that a run inherits with the checkpoint."""


class Doubt(Recorded):
    """One doubt."""

    kind: DoubtKind
    rank: int | None = None
    step: int | None = None
    name: str | None = None
    """The file, field, setting, metric, detector, node or variant concerned."""
    expected: JsonValue = None
    found: JsonValue = None

    @model_serializer(mode="wrap")
    def _only_known(self, handler: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return {name: value for name, value in handler(self).items() if value is not None}

    @property
    def effect(self) -> Effect:
        """Its effect on the verdict."""
        return EFFECTS[self.kind]
