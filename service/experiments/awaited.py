"""How an experiment stands: what is asked of a person, until when, and what may be answered."""

from collections.abc import Sequence

from gonogo.contract.decision import PASSING, Condition, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeCode
from gonogo.judge.gate.conditions import approval_condition, has_expired
from service.db.columns import Awaited, AwaitedKind, StopKind
from service.db.schema import ExperimentRow, PhaseRow, RunRow

GOING_ON = frozenset({RunReason.RESUME.value, RunReason.TAKEOVER.value})
"""Reasons of attempts that resume where the one before them stopped."""
NO_CHECKPOINT = ", from its beginning: no durable checkpoint is known"
ANSWERS = (RunReason.CONFIRM, RunReason.REMEDY)
"""Reasons of runs that answer a failure, perhaps under a patch."""


def open_approval(experiment: ExperimentRow) -> Condition | None:
    """Return the approval that an experiment waits for, as the open condition that it is."""
    awaited = experiment.awaiting
    if awaited is None or awaited.kind is not AwaitedKind.APPROVAL or not awaited.following:
        return None
    return approval_condition(awaited.phase, awaited.following)


def clock_of(awaited: Awaited, now: float) -> tuple[float | None, float]:
    """Return for how many seconds an approval is awaited, and for how many it was at `now`."""
    waited_s = max(0.0, round(now - (awaited.asked_at or 0.0), 3))
    return awaited.expires_s, waited_s


def is_expired(experiment: ExperimentRow, now: float) -> bool:
    """Say whether the awaited approval can be given no more at `now`, Unix seconds."""
    if open_approval(experiment) is None or experiment.awaiting is None:
        return False
    return has_expired(*clock_of(experiment.awaiting, now))


def expires_at(experiment: ExperimentRow) -> float | None:
    """Return when the awaited approval expires, Unix seconds; None: never, or none is awaited."""
    awaited = experiment.awaiting
    if awaited is None or open_approval(experiment) is None or awaited.expires_s is None:
        return None
    return (awaited.asked_at or 0.0) + awaited.expires_s


def is_owed(run: RunRow) -> bool:
    """Say whether a run has ended and cannot be judged, since nobody sends the rest of it."""
    ended = run.state == RunState.ENDED and not run.judged and not run.given_up
    return ended and run.lost


def went_to_its_end(run: RunRow) -> bool:
    """Say whether a run went to its last step: nothing is left to continue after it."""
    return run.outcome is not None and run.outcome.code is OutcomeCode.COMPLETED


def last_tried(runs: Sequence[RunRow]) -> RunRow | None:
    """Return the last of these runs that began and has ended, if there is one.

    One that was ended in the queue has left nothing, and says nothing of those before it.
    """
    return next((run for run in reversed(runs) if run.outcome and run.started_at is not None), None)


def last_judged(runs: Sequence[RunRow]) -> RunRow | None:
    """Return the last tried run, or the failure that it confirms if it did not pass."""
    last = last_tried(runs)
    if last is None or last.reason != RunReason.CONFIRM or last.verdict in PASSING:
        return last
    before = [row for row in runs if row.phase == last.phase and row.reason != RunReason.CONFIRM]
    return last_tried(before) or last


def begins_anew(runs: Sequence[RunRow]) -> bool:
    """Say whether a phase with these runs starts from the beginning in a continuing experiment.

    Its last run reached its end, or the last run without a patch did. A plan without the patch does
    not continue from checkpoints of a remedy or a variant.
    """
    planned = [run for run in runs if run.reason not in ANSWERS or not run.change]
    return any(last and went_to_its_end(last) for last in map(last_tried, (runs, planned)))


def has_not_passed(run: RunRow) -> bool:
    """Say whether a run went to its last step, was judged, and did not pass with all of its gate.

    A resume from its checkpoint would show the last steps alone, and the gate is for all steps.
    """
    return went_to_its_end(run) and run.judged and run.verdict is not Verdict.GO


def verbs_of(
    experiment: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: Sequence[RunRow],
    now: float | None = None,
) -> tuple[str, ...]:
    """Return what can be asked of an experiment; without `now`, an approval is never too late."""
    state = experiment.state
    run = next((row for row in reversed(runs) if row.state != RunState.ENDED), None)
    held = run is not None and run.state != RunState.QUEUED
    with_worker = ("takeover",) if held or any(map(is_owed, runs)) else ()
    if state in (ExperimentState.QUEUED, ExperimentState.RUNNING):
        return ("halt", "cancel", *with_worker)
    if state == ExperimentState.STOPPING:
        stop = experiment.stop
        halts = stop is not None and stop.kind is StopKind.HALT
        again = (stop.kind.value,) if held and stop is not None and not stop.again else ()
        return (*again, *(("cancel",) if halts else ()), *with_worker)
    if state == ExperimentState.FINISHED:
        return ("override",)
    if experiment.awaiting is not None and experiment.awaiting.kind is AwaitedKind.APPROVAL:
        late = now is not None and is_expired(experiment, now)
        return (*(() if late else ("promote",)), "override", "cancel")
    is_open = any(phase.state == PhaseState.ACTIVE for phase in phases)
    if is_open and runs and has_not_passed(runs[-1]):
        return ("rerun", "override", "cancel")
    return (*(("rerun", "resume") if is_open else ()), "override", "cancel")
