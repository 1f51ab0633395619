"""What follows a failure of infrastructure? A retry from the last checkpoint, or no more (D25).

A run that was preempted has not failed: its host was taken away. It goes on from its checkpoint,
however often that happens, and counts neither as a retry nor towards a restart storm. But where it
is taken away again and again before it has saved anything, as by a time limit that is shorter than
the way to its first checkpoint, a person is asked.
"""

from collections.abc import Sequence
from itertools import pairwise

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeClass, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, ActionKind, Attempt
from gonogo.judge.course.reruns import earlier_beginnings
from gonogo.watch.detectors.restart_storm import Start, is_storm

IN_VAIN = 10
"""So many preemptions running without a later checkpoint are not gone on from unasked."""


def decide_retry(
    plan: Plan,
    phase: str,
    attempts: Sequence[Attempt],
    now: float,
    awaited: Sequence[Criterion],
) -> Action:
    """Return what follows a run that infrastructure ended: the last of `attempts`.

    Args:
        plan: the experiment's plan.
        phase: which phase.
        attempts: its ended runs.
        now: Unix seconds.
        awaited: as in `earlier_beginnings`.
    """
    last = attempts[-1]
    failed = [row for row in _trailing_infra(attempts) if not _was_preempted(row)]
    if is_restart_storm(plan, phase, attempts, now, awaited):
        return Action(
            kind=ActionKind.FINISH,
            text=f"restart_storm: {len(failed)} attempts failed without getting further",
            record=True,
            about=last.run,
            history=History(restart_storm=True),
            verdict=Verdict.NO_GO,
        )
    in_vain = _was_preempted(last) and _gets_nowhere(plan, phase, attempts, awaited)
    if not in_vain and (_was_preempted(last) or len(failed) <= plan.retry.infra):
        keeps = last.reason in (RunReason.CONFIRM, RunReason.REMEDY)
        return Action(
            kind=ActionKind.START_RUN,
            text=_why_again(plan, last, len(failed)) + _made_again(plan, phase, last, awaited),
            phase=phase,
            reason=last.reason if keeps else RunReason.RESUME,
            resume=True,
            change=last.change,
            until=last.until,
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
    f"preempted {IN_VAIN} times without a later checkpoint: a longer time limit or checkpoints"
    " more often, then resume"
)


def _why_again(plan: Plan, last: Attempt, failed: int) -> str:
    if _was_preempted(last):
        return "preempted: it goes on from its last checkpoint"
    return f"{last.outcome.code}: retry {failed} of {plan.retry.infra}"


def _made_again(plan: Plan, phase: str, last: Attempt, awaited: Sequence[Criterion]) -> str:
    """Say that the next attempt may make steps again, so that its gate sees enough of them."""
    if last.until is not None or not earlier_beginnings(plan, phase, last.durable_step, awaited):
        return ""
    return f", or from one before step {last.durable_step} after which the gate sees enough"


def _was_preempted(attempt: Attempt) -> bool:
    return attempt.outcome.code is OutcomeCode.PREEMPTED


def _gets_nowhere(
    plan: Plan, phase: str, attempts: Sequence[Attempt], awaited: Sequence[Criterion]
) -> bool:
    """Say whether the last launched attempts were all preempted before they had got further.

    Or the last of all, before one of them was launched: a prolog that fails, a time limit that is
    over before the nodes have looked.
    """
    newest = attempts[-IN_VAIN:]
    if len(newest) == IN_VAIN and all(_was_preempted(row) and not row.launched for row in newest):
        return True
    launched = [row for row in attempts if row.launched]
    recent, reached = launched[-IN_VAIN:], _reached(plan, phase, launched, awaited)
    if len(recent) < IN_VAIN or not all(map(_was_preempted, recent)):
        return False
    return max(reached[-IN_VAIN:]) <= max(reached[:-IN_VAIN], default=0)


def _reached(
    plan: Plan, phase: str, attempts: Sequence[Attempt], awaited: Sequence[Criterion]
) -> list[int]:
    """Return how far each attempt had got: what was made again for the gate counts as further."""
    found, again = [row.durable_step for row in attempts[:1]], 0
    for before, row in pairwise(attempts):
        earlier = earlier_beginnings(plan, phase, before.durable_step, awaited)
        if row.until is None and earlier and row.began_at in earlier:
            again += before.durable_step - row.began_at
        found.append(row.durable_step + again)
    return found


def _trailing_infra(attempts: Sequence[Attempt]) -> list[Attempt]:
    failed: list[Attempt] = []
    for row in reversed(attempts):
        if row.outcome.klass is not OutcomeClass.INFRA:
            break
        failed.insert(0, row)
    return failed


def is_restart_storm(
    plan: Plan,
    phase: str,
    attempts: Sequence[Attempt],
    now: float,
    awaited: Sequence[Criterion],
) -> bool:
    """Say whether retrying is a storm (D25) by the plan's settings.

    Only launched attempts count that infrastructure ended, without another end in between.
    """
    reached = _reached(plan, phase, attempts, awaited)
    before = len(attempts) - len(_trailing_infra(attempts))
    starts = [
        Start(at=row.started_at, durable_step=step)
        for row, step in zip(attempts[before:], reached[before:], strict=True)
        if row.launched and not _was_preempted(row)
    ]
    return is_storm(
        starts,
        before_step=max(reached[:before], default=0),
        now=now,
        settings=plan.watch.restart_storm,
    )
