"""What follows a failure of infrastructure? A retry from the last checkpoint, or no more (D25)."""

from collections.abc import Sequence

from gonogo.contract.decision import Verdict
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.judge.action import Action, ActionKind, Attempt

STORM_ATTEMPTS = 3
STORM_STARTS = 5
STORM_WINDOW_S = 1800.0


def decide_retry(plan: Plan, phase: str, attempts: Sequence[Attempt], now: float) -> Action:
    """Return what follows a run that infrastructure ended: the last of `attempts`."""
    last = attempts[-1]
    failed = _trailing_infra(attempts)
    if is_restart_storm(attempts, now):
        return Action(
            kind=ActionKind.FINISH,
            text=f"restart storm: {len(failed)} attempts failed without getting further",
            record=True,
            about=last.run,
            history={"restart_storm": True},
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
        )
    return Action(
        kind=ActionKind.AWAIT_DECISION,
        text=f"{last.outcome.code} after {plan.retry.infra} retries",
        record=True,
        about=last.run,
        history={"restart_storm": False},
        verdict=Verdict.INCONCLUSIVE,
    )


def _trailing_infra(attempts: Sequence[Attempt]) -> list[Attempt]:
    failed: list[Attempt] = []
    for row in reversed(attempts):
        if row.outcome.klass is not OutcomeClass.INFRA:
            break
        failed.insert(0, row)
    return failed


def is_restart_storm(attempts: Sequence[Attempt], now: float) -> bool:
    """Say whether retrying is a storm (D25): no higher durable step thrice, or 5 starts in 30 min.

    Only launched attempts count that infrastructure ended, without another end in between.
    """
    failed = [row for row in _trailing_infra(attempts) if row.launched]
    recent = [row for row in failed if row.started_at is not None]
    if sum(now - row.started_at <= STORM_WINDOW_S for row in recent if row.started_at) >= (
        STORM_STARTS
    ):
        return True
    if len(failed) < STORM_ATTEMPTS:
        return False
    before = attempts[: -len(_trailing_infra(attempts))]
    steps = [max((row.durable_step for row in before), default=0)]
    steps += [row.durable_step for row in failed]
    latest = steps[-STORM_ATTEMPTS - 1 :]
    return max(latest[1:]) <= latest[0]
