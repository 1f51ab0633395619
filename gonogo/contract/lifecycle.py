"""States of runs, phases and experiments, and the tables of allowed transitions."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gonogo.contract.errors import Conflict


class RunState(StrEnum):
    """State of a run; `suspect` and `lost` are flags beside it."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    PREFLIGHT = "preflight"
    STARTING = "starting"
    RUNNING = "running"
    HALTING = "halting"
    ENDED = "ended"


class RunEvent(StrEnum):
    """What may happen to a run."""

    CLAIM = "claim"
    CHECK = "check"
    LAUNCH = "launch"
    STEP = "step"
    HALT = "halt"
    END = "end"


class PhaseState(StrEnum):
    """State of a phase."""

    PENDING = "pending"
    ACTIVE = "active"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    INHERITED = "inherited"  # It passed in the experiment from which this one continues.


class PhaseEvent(StrEnum):
    """What may happen to a phase."""

    ACTIVATE = "activate"
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    INHERIT = "inherit"


class ExperimentState(StrEnum):
    """State of an experiment."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_DECISION = "awaiting_decision"
    STOPPING = "stopping"
    FINISHED = "finished"


class ExperimentEvent(StrEnum):
    """What may happen to an experiment."""

    START = "start"
    AWAIT = "await"
    CONTINUE = "continue"
    STOP = "stop"
    FINISH = "finish"


RUN_TRANSITIONS: dict[tuple[RunState, RunEvent], RunState] = {
    (RunState.QUEUED, RunEvent.CLAIM): RunState.CLAIMED,
    (RunState.QUEUED, RunEvent.END): RunState.ENDED,
    (RunState.CLAIMED, RunEvent.CHECK): RunState.PREFLIGHT,
    (RunState.CLAIMED, RunEvent.HALT): RunState.HALTING,
    (RunState.CLAIMED, RunEvent.END): RunState.ENDED,
    (RunState.PREFLIGHT, RunEvent.LAUNCH): RunState.STARTING,
    (RunState.PREFLIGHT, RunEvent.HALT): RunState.HALTING,
    (RunState.PREFLIGHT, RunEvent.END): RunState.ENDED,
    (RunState.STARTING, RunEvent.STEP): RunState.RUNNING,
    (RunState.STARTING, RunEvent.HALT): RunState.HALTING,
    (RunState.STARTING, RunEvent.END): RunState.ENDED,
    (RunState.RUNNING, RunEvent.HALT): RunState.HALTING,
    (RunState.RUNNING, RunEvent.END): RunState.ENDED,
    (RunState.HALTING, RunEvent.END): RunState.ENDED,
}

PHASE_TRANSITIONS: dict[tuple[PhaseState, PhaseEvent], PhaseState] = {
    (PhaseState.PENDING, PhaseEvent.ACTIVATE): PhaseState.ACTIVE,
    (PhaseState.PENDING, PhaseEvent.SKIP): PhaseState.SKIPPED,
    (PhaseState.PENDING, PhaseEvent.INHERIT): PhaseState.INHERITED,
    (PhaseState.ACTIVE, PhaseEvent.PASS): PhaseState.PASSED,
    (PhaseState.ACTIVE, PhaseEvent.FAIL): PhaseState.FAILED,
    (PhaseState.ACTIVE, PhaseEvent.SKIP): PhaseState.SKIPPED,
}

EXPERIMENT_TRANSITIONS: dict[tuple[ExperimentState, ExperimentEvent], ExperimentState] = {
    (ExperimentState.QUEUED, ExperimentEvent.START): ExperimentState.RUNNING,
    (ExperimentState.QUEUED, ExperimentEvent.FINISH): ExperimentState.FINISHED,
    (ExperimentState.QUEUED, ExperimentEvent.STOP): ExperimentState.STOPPING,
    (ExperimentState.RUNNING, ExperimentEvent.AWAIT): ExperimentState.AWAITING_DECISION,
    (ExperimentState.RUNNING, ExperimentEvent.STOP): ExperimentState.STOPPING,
    (ExperimentState.RUNNING, ExperimentEvent.FINISH): ExperimentState.FINISHED,
    (ExperimentState.AWAITING_DECISION, ExperimentEvent.CONTINUE): ExperimentState.RUNNING,
    (ExperimentState.AWAITING_DECISION, ExperimentEvent.FINISH): ExperimentState.FINISHED,
    (ExperimentState.STOPPING, ExperimentEvent.AWAIT): ExperimentState.AWAITING_DECISION,
    (ExperimentState.STOPPING, ExperimentEvent.FINISH): ExperimentState.FINISHED,
}


_S = TypeVar("_S", bound=StrEnum)
_E = TypeVar("_E", bound=StrEnum)


def advance(table: Mapping[tuple[_S, _E], _S], state: _S, event: _E) -> _S:
    """Return the state after `event`, or raise `Conflict` if the table has no such transition."""
    found = table.get((state, event))
    if found is None:
        allowed = tuple(str(key[1]) for key in table if key[0] == state)
        raise Conflict(f"{event} is not possible in state {state}", state=state, allowed=allowed)
    return found
