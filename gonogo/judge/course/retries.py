"""What follows a failure of infrastructure: a retry from the last checkpoint, or no more (D25).

A preempted run has not failed: its host was taken away. It resumes from its checkpoint, and counts
neither as a retry nor towards a restart storm. After `IN_VAIN` preemptions without a later
checkpoint, a person is asked: the time limit may be shorter than the way to the first checkpoint.
"""

from collections.abc import Sequence

from gonogo.contract.decision import Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeClass, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, ActionKind, Attempt
from gonogo.watch.detectors.death import Start, is_storm

IN_VAIN = 10
"""After so many preemptions in a row without a later checkpoint, a person is asked."""


def decide_retry(plan: Plan, phase: str, attempts: Sequence[Attempt], now: float) -> Action:
    """Return what follows a run that infrastructure ended: the last of `attempts`.

    Args:
        plan: the experiment's plan.
        phase: which phase.
        attempts: its ended runs.
        now: Unix seconds.
    """
    last = attempts[-1]
    failed = [row for row in _trailing_infra(attempts) if not _was_preempted(row)]
    if is_restart_storm(plan, attempts, now):
        return Action(
            kind=ActionKind.FINISH,
            text=f"restart_storm: {len(failed)} attempts failed without getting further",
            record=True,
            about=last.run,
            history=History(restart_storm=True),
            verdict=Verdict.NO_GO,
        )
    preempted = _was_preempted(last)
    in_vain = preempted and _gets_nowhere(attempts)
    if not in_vain and (preempted or len(failed) <= plan.retry.infra):
        retry = f"{last.outcome.code}: retry {len(failed)} of {plan.retry.infra}"
        keeps = last.reason in (RunReason.CONFIRM, RunReason.REMEDY)
        return Action(
            kind=ActionKind.START_RUN,
            text="preempted: it resumes from its last checkpoint" if preempted else retry,
            phase=phase,
            reason=last.reason if keeps else RunReason.RESUME,
            resume=True,
            change=last.change,
        )
    return Action(
        kind=ActionKind.AWAIT_DECISION,
        text=_IN_VAIN if in_vain else f"{last.outcome.code} after {plan.retry.infra} retries",
        record=True,
        about=last.run,
        history=History(restart_storm=False),
        verdict=Verdict.INCONCLUSIVE,
    )


_IN_VAIN = (
    f"preempted {IN_VAIN} times without a later checkpoint: set a longer time limit, or save"
    " checkpoints more often, then resume"
)


def _was_preempted(attempt: Attempt) -> bool:
    return attempt.outcome.code is OutcomeCode.PREEMPTED


def _gets_nowhere(attempts: Sequence[Attempt]) -> bool:
    """Say whether the last attempts were all preempted before they had got further."""
    recent, before = attempts[-IN_VAIN:], attempts[:-IN_VAIN]
    if len(recent) < IN_VAIN or not all(map(_was_preempted, recent)):
        return False
    reached = max((row.durable_step for row in before), default=0)
    return max(row.durable_step for row in recent) <= reached


def _trailing_infra(attempts: Sequence[Attempt]) -> list[Attempt]:
    failed: list[Attempt] = []
    for row in reversed(attempts):
        if row.outcome.klass is not OutcomeClass.INFRA:
            break
        failed.insert(0, row)
    return failed


def is_restart_storm(plan: Plan, attempts: Sequence[Attempt], now: float) -> bool:
    """Say whether retrying is a storm (D25) by the plan's settings.

    Only launched attempts count that infrastructure ended, without another end in between.
    """
    trailing = _trailing_infra(attempts)
    before = attempts[: len(attempts) - len(trailing)]
    starts = [
        Start(at=row.started_at, durable_step=row.durable_step)
        for row in trailing
        if row.launched and not _was_preempted(row)
    ]
    reached = max((row.durable_step for row in before), default=0)
    return is_storm(starts, before_step=reached, now=now, settings=plan.watch.restart_storm)
