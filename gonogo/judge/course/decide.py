"""What happens next? A phase's runs and its plan in, the next action out, as data.

Infrastructure failures are retried (`retries`), a NO_GO that the plan wants confirmed is rerun
first (`confirmation`), what the plan has a remedy for is answered (`remedies`), everything else
concludes the phase. Nothing here starts anything: the
service does what the action says.
"""

from collections.abc import Sequence
from dataclasses import replace

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import PASSING, Condition, Verdict
from gonogo.contract.facts import History
from gonogo.contract.order import CarriedRemedy, RunReason
from gonogo.contract.outcome import TAKEN_OVER, OutcomeClass, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action as Action
from gonogo.judge.course.action import ActionKind as ActionKind
from gonogo.judge.course.action import Attempt as Attempt
from gonogo.judge.course.action import build_attempt as build_attempt
from gonogo.judge.course.carrying import left_by_run
from gonogo.judge.course.confirmation import (
    completion_of,
    confirmed_run,
    history_of,
    joined,
    next_confirmation,
    unsettled_before,
    unsettled_by,
)
from gonogo.judge.course.remedies import (
    SAY_NOTHING,
    may_settle,
    never_ended,
    next_remedy,
    remedied,
    set_aside,
)
from gonogo.judge.course.reruns import go_on
from gonogo.judge.course.retries import decide_retry
from gonogo.judge.gate.approval import ApprovalMeasure, ApprovalRule, has_expired
from gonogo.judge.gate.conditions import END, ON_MISS, criteria_awaited, missed
from gonogo.judge.gate.history import confirmed_verdict
from gonogo.judge.gate.rules import OpenCondition
from gonogo.judge.gate.verdict import worst


def decide(
    plan: Plan,
    phase: str,
    attempts: Sequence[Attempt],
    *,
    now: float,
    conditions: Sequence[OpenCondition] = (),
    carried: Sequence[CarriedRemedy] = (),
    by_hand: Sequence[str] = (),
) -> Action:
    """Return what follows the end of the last of a phase's runs.

    Args:
        plan: the experiment's plan.
        phase: name of the phase.
        attempts: its ended runs in the order of their start, at least one; of those that were taken
            over only what they had failed counts.
        now: Unix seconds.
        conditions: every condition of the experiment in its present state, those that the last
            run met and those that its decision makes included.
        carried: remedies of earlier phases that lie over all these runs.
        by_hand: phases that a person decided.
    """
    last, every = attempts[-1], attempts
    attempts = [row for row in attempts if row is last or row.outcome.code not in TAKEN_OVER]
    if last.outcome.klass is OutcomeClass.OPERATOR:
        return _after_operator(last)
    awaited = criteria_awaited(conditions, phase)
    kept, in_vain = set_aside(attempts)
    if last.outcome.klass is OutcomeClass.INFRA:
        again = decide_retry(plan, phase, attempts, now, awaited)
        lost = never_ended(attempts) if again.record else None
        if lost is None:
            return again
        in_vain = f"{lost}: {again.text}"
    runs = [row for row in kept if row.outcome.klass not in SAY_NOTHING]
    first, confirmations = confirmed_run(runs)
    if first.verdict is not Verdict.NO_GO:
        answer = _answer(plan, phase, first, attempts, carried, awaited)
        if answer is not None:
            return answer
        before = unsettled_before(every, first)
        action = _conclude(plan, phase, first, first.verdict, before, conditions, by_hand)
        return action if in_vain is None else replace(action, text=f"{action.text}; {in_vain}")
    further = next_confirmation(plan, phase, first, confirmations, awaited)
    if further is not None:
        return further
    history = history_of(first, confirmations)
    whole = completion_of(confirmations)
    if whole is not None and whole.verdict is not Verdict.NO_GO:
        history = joined(history, unsettled_before(every, whole))
        verdict = _at_most_conditional(whole)
        return _conclude(plan, phase, whole, verdict, history, conditions, by_hand)
    verdict = confirmed_verdict(history, Verdict.NO_GO)
    if verdict is Verdict.NO_GO:
        remedy = next_remedy(plan, phase, first, runs, carried)
        if remedy is not None:
            return remedy
    history = joined(history, unsettled_by(every, confirmations))
    return _conclude(plan, phase, first, verdict, history, conditions, by_hand)


def _answer(
    plan: Plan,
    phase: str,
    first: Attempt,
    attempts: Sequence[Attempt],
    carried: Sequence[CarriedRemedy],
    awaited: Sequence[Criterion],
) -> Action | None:
    """Return what a run that did not fail is answered by before it concludes, if by anything."""
    if first.until is not None and first.verdict in PASSING:
        return go_on(plan, phase, first, "remedied: the phase goes on", awaited)
    return next_remedy(plan, phase, first, attempts, carried) if may_settle(first) else None


def _at_most_conditional(whole: Attempt) -> Verdict | None:
    """Return what a completion comes to whose phase had failed before: no more than conditional."""
    return Verdict.CONDITIONAL_GO if whole.verdict is Verdict.GO else whole.verdict


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
    first: Attempt,
    verdict: Verdict | None,
    history: History | None,
    conditions: Sequence[OpenCondition],
    by_hand: Sequence[str],
) -> Action:
    remedy = remedied(first)
    if remedy is not None:
        history = joined(History(remedy=remedy), history)
    unsettled = history is not None and bool(history.undecided or history.failed_before)
    if verdict is Verdict.GO and (remedy is not None or unsettled):
        verdict = Verdict.CONDITIONAL_GO
    if verdict in PASSING:
        changed = any(row.variant for row in (history.confirmations if history else []))
        action = decide_promotion(plan, phase, conditions, by_hand)
        if action.kind is ActionKind.START_PHASE:
            action = _with_approval(plan, phase, verdict, action, by_variant=changed)
        left = None if action.phase is None else left_by_run(plan, phase, first)
        if left is not None:
            action = replace(action, text=f"{action.text}; {left.diagnosis}'s remedy is carried on")
    elif verdict is Verdict.NO_GO:
        action = Action(kind=ActionKind.FINISH, text=f"{phase} is NO_GO")
    else:
        action = Action(kind=ActionKind.AWAIT_DECISION, text=f"{phase} is inconclusive")
    return replace(action, record=True, about=first.run, history=history, verdict=verdict)


def decide_promotion(
    plan: Plan,
    phase: str,
    conditions: Sequence[OpenCondition] = (),
    by_hand: Sequence[str] = (),
) -> Action:
    """Return what follows a passed (or approved) phase: the next one, or the end.

    Conditions that guard what comes next and are still open are missed, and act as they say.

    Args:
        plan: the experiment's plan.
        phase: name of the phase.
        conditions: every condition of the experiment in its present state.
        by_hand: phases that a person decided.
    """
    following = plan.next_phase(phase)
    late = tuple(missed(conditions, following.name if following is not None else END))
    stop = worst(ON_MISS[row.on_miss] for row in late)
    if stop is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=_told(late), missed=late)
    if stop is Verdict.INCONCLUSIVE:
        return Action(kind=ActionKind.AWAIT_DECISION, text=_told(late), missed=late)
    if following is None:
        text = f"{phase} was the last phase; a person decided {', '.join(by_hand)}"
        text = text if by_hand else "every phase passed"
        return Action(kind=ActionKind.FINISH, text=text, missed=late)
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
    plan: Plan, phase: str, rule: ApprovalRule, measure: ApprovalMeasure
) -> Action | None:
    """Return what follows when nobody gave an approval in time; None while it can be given.

    Silence is no consent, and no NO_GO either: the experiment is inconclusive, and a person decides
    by hand or ends it. Nothing starts.

    Args:
        plan: the experiment's plan.
        phase: the phase that passed.
        rule: how long it is waited for.
        measure: when it was asked for, and what the clock says.
    """
    following = plan.next_phase(phase)
    if following is None or not has_expired(rule, measure):
        return None
    return Action(
        kind=ActionKind.AWAIT_DECISION,
        text=f"nobody approved {following.name} within {rule.expires_s:g} s",
        phase=following.name,
    )


def decide_override(
    plan: Plan,
    phase: str,
    verdict: Verdict,
    *,
    awaiting: bool,
    conditions: Sequence[OpenCondition] = (),
    by_hand: Sequence[str] = (),
) -> Action:
    """Return what a person's verdict does: it acts while awaited, and only re-labels otherwise.

    Args:
        plan: the experiment's plan.
        phase: the phase that the verdict is about.
        verdict: as the person said.
        awaiting: whether the experiment is awaiting a decision.
        conditions: as in `decide`.
        by_hand: other phases that a person decided.
    """
    if not awaiting:
        return Action(kind=ActionKind.NOTHING, text="re-labelled", verdict=verdict)
    if verdict in PASSING:
        named = list(dict.fromkeys([*by_hand, phase]))
        return replace(decide_promotion(plan, phase, conditions, named), verdict=verdict)
    if verdict is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=f"{phase} was called NO_GO", verdict=verdict)
    return Action(
        kind=ActionKind.AWAIT_DECISION, text=f"{phase} was called INCONCLUSIVE", verdict=verdict
    )
