"""What happens next: `verdict + history + plan → action`, as a pure function.

Infrastructure failures are retried, a NO_GO that the plan wants confirmed is rerun first, and the
plan's remedy answers a known failure (`reruns`). Everything else concludes the phase. The service
does what the action says.
"""

from collections.abc import Sequence
from dataclasses import replace

from gonogo.contract.decision import PASSING, Condition, Verdict, worst
from gonogo.contract.facts import History
from gonogo.contract.order import CarriedRemedy, OpenCondition, RunReason
from gonogo.contract.outcome import TAKEN_OVER, OutcomeClass, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.follow_up.action import SAY_NOTHING, Action, ActionKind, Attempt
from gonogo.judge.follow_up.reruns import (
    decide_retry,
    history_of,
    next_confirmation,
    next_remedy,
    question_of,
)
from gonogo.judge.gate.conditions import END, ON_MISS, has_expired, missed


def decide(
    plan: Plan,
    phase: str,
    attempts: Sequence[Attempt],
    *,
    now: float,
    conditions: Sequence[OpenCondition] = (),
    carried: Sequence[CarriedRemedy] = (),
) -> Action:
    """Return what follows the end of the last of a phase's runs.

    Args:
        attempts: its ended runs in the order of their start, at least one. Only failures of the
            runs that were taken over count.
        conditions: every condition of the experiment in its present state, including those that the
            last run met and those that its decision makes.
        carried: remedies of earlier phases that lie over all these runs.
    """
    last = attempts[-1]
    counted = [row for row in attempts if row is last or row.outcome.code not in TAKEN_OVER]
    if last.outcome.klass is OutcomeClass.OPERATOR:
        return _after_operator(last)
    if last.outcome.klass is OutcomeClass.INFRA:
        return decide_retry(plan, phase, counted, now)
    runs = [row for row in counted if row.outcome.klass not in SAY_NOTHING]
    question = question_of(runs)
    judged = question.answer
    further = None
    if judged.verdict is Verdict.NO_GO:
        further = next_confirmation(plan, phase, question)
        further = further or next_remedy(plan, phase, question.failed, runs, carried)
    if further is not None:
        return further
    history = history_of(attempts, question, judged)
    return _conclude(plan, phase, judged, history, conditions)


def _after_operator(last: Attempt) -> Action:
    if last.outcome.code is OutcomeCode.SUPERSEDED:
        return Action(kind=ActionKind.NOTHING, text="another attempt has taken over")
    halted = last.outcome.code is OutcomeCode.HALTED
    return Action(
        kind=ActionKind.AWAIT_DECISION if halted else ActionKind.FINISH,
        text="halted by an operator" if halted else "cancelled by an operator",
        record=True,
        about=last.run,
        verdict=Verdict.INCONCLUSIVE if halted else None,
    )


def _conclude(
    plan: Plan,
    phase: str,
    judged: Attempt,
    history: History | None,
    conditions: Sequence[OpenCondition],
) -> Action:
    """Return the action of a phase whose runs are over; a history makes GO conditional."""
    verdict = judged.verdict
    if verdict is Verdict.GO and history is not None:
        verdict = Verdict.CONDITIONAL_GO
    if verdict in PASSING:
        by_variant = judged.reason is RunReason.CONFIRM and judged.change is not None
        action = decide_promotion(plan, phase, conditions)
        if action.kind is ActionKind.START_PHASE:
            action = _with_approval(plan, phase, verdict, action, by_variant=by_variant)
    elif verdict is Verdict.NO_GO:
        action = Action(kind=ActionKind.FINISH, text=f"{phase} is NO_GO")
    else:
        action = Action(kind=ActionKind.AWAIT_DECISION, text=f"{phase} is inconclusive")
    return replace(action, record=True, about=judged.run, history=history, verdict=verdict)


def decide_promotion(plan: Plan, phase: str, conditions: Sequence[OpenCondition] = ()) -> Action:
    """Return what follows a passed (or approved) phase: the next one, or the end.

    Conditions that guard what comes next and are still open are missed, and act as they say.
    """
    following = plan.next_phase(phase)
    late = tuple(missed(conditions, following.name if following is not None else END))
    stop = worst(ON_MISS[row.on_miss] for row in late)
    if stop is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=_told(late), missed=late)
    if stop is Verdict.INCONCLUSIVE:
        return Action(kind=ActionKind.AWAIT_DECISION, text=_told(late), missed=late)
    if following is None:
        return Action(kind=ActionKind.FINISH, text=f"{phase} was the last phase", missed=late)
    return Action(
        kind=ActionKind.START_PHASE,
        text=f"{phase} passed",
        phase=following.name,
        reason=RunReason.FIRST,
        missed=late,
    )


def _told(late: Sequence[Condition]) -> str:
    return f"conditions missed: {', '.join(row.id for row in late)}"


def _with_approval(
    plan: Plan, name: str, verdict: Verdict, action: Action, *, by_variant: bool
) -> Action:
    """Return the promotion, or the wait for a person where the plan (or a variant) asks for one."""
    if not asks_approval(plan, name, verdict) and not by_variant:
        return action
    return Action(
        kind=ActionKind.AWAIT_APPROVAL,
        text=f"{name} is {verdict}: {action.phase} waits for an approval",
        phase=action.phase,
        missed=action.missed,
        expires_s=plan.approval_limit_s(name),
    )


def asks_approval(plan: Plan, phase: str, verdict: Verdict | None) -> bool:
    """Say whether the plan lets what follows a phase of this verdict wait for a person."""
    approve = plan.phase(phase).approve
    return approve == "always" or (
        approve == "on_conditional" and verdict is Verdict.CONDITIONAL_GO
    )


def decide_expiry(
    plan: Plan, phase: str, expires_s: float | None, waited_s: float
) -> Action | None:
    """Return what follows when nobody gave an approval in time; None while it can be given.

    Silence is no consent, and no NO_GO either: the experiment is inconclusive, and a person decides
    by hand or ends it. Nothing starts.
    """
    following = plan.next_phase(phase)
    if following is None or not has_expired(expires_s, waited_s):
        return None
    return Action(
        kind=ActionKind.AWAIT_DECISION,
        text=f"nobody approved {following.name} within {expires_s:g} s",
        phase=following.name,
    )


def decide_override(
    plan: Plan,
    phase: str,
    verdict: Verdict,
    *,
    awaiting: bool,
    conditions: Sequence[OpenCondition] = (),
) -> Action:
    """Return what a person's verdict does: it acts while the experiment awaits a decision.

    Otherwise it only re-labels.
    """
    if not awaiting:
        return Action(kind=ActionKind.NOTHING, text="re-labelled", verdict=verdict)
    if verdict in PASSING:
        return replace(decide_promotion(plan, phase, conditions), verdict=verdict)
    if verdict is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=f"{phase} was called NO_GO", verdict=verdict)
    return Action(
        kind=ActionKind.AWAIT_DECISION, text=f"{phase} was called INCONCLUSIVE", verdict=verdict
    )
