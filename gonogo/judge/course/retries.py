"""What follows a failure of infrastructure? A retry from the last checkpoint, or no more (D25)."""

from collections.abc import Sequence

from gonogo.contract.decision import Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, ActionKind, Attempt
from gonogo.judge.watch.detectors.restart_storm import Start, is_storm


def decide_retry(plan: Plan, phase: str, attempts: Sequence[Attempt], now: float) -> Action:
    """Return what follows a run that infrastructure ended: the last of `attempts`."""
    last = attempts[-1]
    failed = _trailing_infra(attempts)
    if is_restart_storm(plan, attempts, now):
        return Action(
            kind=ActionKind.FINISH,
            text=f"restart_storm: {len(failed)} attempts failed without getting further",
            record=True,
            about=last.run,
            history=History(restart_storm=True),
            verdict=Verdict.NO_GO,
        )
    if len(failed) <= plan.retry.infra:
        keeps = last.reason in (RunReason.CONFIRM, RunReason.REMEDY)
        return Action(
            kind=ActionKind.START_RUN,
            text=f"{last.outcome.code}: retry {len(failed)} of {plan.retry.infra}",
            phase=phase,
            reason=last.reason if keeps else RunReason.RESUME,
            resume=True,
            change=last.change,
            until=last.until,
        )
    return Action(
        kind=ActionKind.AWAIT_DECISION,
        text=f"{last.outcome.code} after {plan.retry.infra} retries",
        record=True,
        about=last.run,
        history=History(restart_storm=False),
        verdict=Verdict.INCONCLUSIVE,
    )


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
    failed = _trailing_infra(attempts)
    before = attempts[: len(attempts) - len(failed)]
    starts = [
        Start(at=row.started_at, durable_step=row.durable_step) for row in failed if row.launched
    ]
    return is_storm(
        starts,
        before_step=max((row.durable_step for row in before), default=0),
        now=now,
        settings=plan.watch.restart_storm,
    )
