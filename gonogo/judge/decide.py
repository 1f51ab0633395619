"""What happens next? A phase's runs and its plan in, the next action out, as data.

Infrastructure failures are retried and resumed; a restart storm is not (D25). A NO_GO that the plan
wants confirmed is rerun first (R15): unchanged, then, only if it fails again, with the variants.
Nothing here starts anything: the service does what the action says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector, Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.plan import Phase, Plan
from gonogo.judge.conditions import END, ON_MISS, missed
from gonogo.judge.diagnosis import LOGGING_OFF, latched, logging_is_off
from gonogo.judge.history import confirmed_verdict
from gonogo.judge.rules import OpenCondition
from gonogo.judge.seal import build_decision as build_decision
from gonogo.judge.verdict import Judgement, worst

STORM_ATTEMPTS = 3
STORM_STARTS = 5
STORM_WINDOW_S = 1800.0

HANGS = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})


class ActionKind(StrEnum):
    """What the service does next."""

    START_PHASE = "start_phase"
    START_RUN = "start_run"
    AWAIT_APPROVAL = "await_approval"
    AWAIT_DECISION = "await_decision"
    FINISH = "finish"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One ended run of the phase, as far as what happens next depends on it."""

    run: str
    reason: RunReason
    outcome: Outcome
    verdict: Verdict | None
    """Verdict of this run alone (`judge` without history)."""
    detector: Detector | None = None
    diagnosis: str | None = None
    logging_off: bool = False
    launched: bool = True
    """Whether torchrun was started; a failed preflight is no start."""
    started_at: float | None = None
    """Unix seconds of the launch."""
    durable_step: int = 0
    """Highest step of a verified checkpoint when it ended; 0 for none."""
    change: Mapping[str, Any] | None = None
    """`env` and `train` patch of a confirmation's variant or of a remedy; None when unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do next, and what to record first."""

    kind: ActionKind
    text: str
    """Why, in one sentence."""
    phase: str | None = None
    """Phase to start, or whose next run to start."""
    reason: RunReason | None = None
    resume: bool = False
    """Whether the run goes on from the last durable checkpoint."""
    change: Mapping[str, Any] | None = None
    record: bool = False
    """Whether a decision about the phase is recorded now."""
    about: str | None = None
    """Run whose facts the decision holds."""
    history: Mapping[str, Any] = field(default_factory=dict)
    """What `with_history` lays beside those facts."""
    verdict: Verdict | None = None
    """Verdict of the phase that `judge` comes to with that history."""
    missed: tuple[Condition, ...] = ()
    """Conditions that guarded what would come next and were not met."""


def build_attempt(
    run: str,
    reason: RunReason,
    facts: Mapping[str, Any],
    judgement: Judgement,
    *,
    launched: bool = True,
    started_at: float | None = None,
    durable_step: int = 0,
    change: Mapping[str, Any] | None = None,
) -> Attempt:
    """Return an ended run in the form that `decide` takes.

    Raises:
        ValueError: the facts hold no outcome: the run has not ended.
    """
    if judgement.outcome is None:
        raise ValueError(f"{run} has not ended")
    halt = latched(facts)
    return Attempt(
        run=run,
        reason=reason,
        outcome=judgement.outcome,
        verdict=judgement.verdict,
        detector=None if halt is None else Detector(halt["detector"]),
        diagnosis=judgement.diagnosis,
        logging_off=logging_is_off(facts),
        launched=launched,
        started_at=started_at,
        durable_step=durable_step,
        change=change,
    )


def decide(
    plan: Plan,
    phase: str,
    attempts: Sequence[Attempt],
    *,
    now: float,
    conditions: Sequence[OpenCondition] = (),
) -> Action:
    """Return what follows the end of the last of a phase's runs.

    Args:
        plan: the experiment's plan.
        phase: name of the phase.
        attempts: its ended runs in the order of their start, at least one.
        now: Unix seconds.
        conditions: every condition of the experiment in its present state, those that the last
            run met and those that its decision makes included.
    """
    last = attempts[-1]
    if last.outcome.klass is OutcomeClass.OPERATOR:
        return _after_operator(last)
    if last.outcome.klass is OutcomeClass.INFRA:
        return _after_infra(plan, phase, attempts, now)
    runs = [row for row in attempts if row.outcome.klass is not OutcomeClass.INFRA]
    first, confirmations = _confirmed_run(runs)
    if first.verdict is not Verdict.NO_GO:
        return _conclude(plan, phase, first, first.verdict, {}, conditions)
    further = _next_confirmation(plan, phase, first, confirmations)
    if further is not None:
        return further
    history = _history_of(first, confirmations)
    verdict = confirmed_verdict(history, Verdict.NO_GO)
    if verdict is Verdict.NO_GO:
        remedy = _remedy(plan, phase, first, runs)
        if remedy is not None:
            return remedy
    return _conclude(plan, phase, first, verdict, history, conditions)


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


def _after_infra(plan: Plan, phase: str, attempts: Sequence[Attempt], now: float) -> Action:
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


def _confirmed_run(runs: Sequence[Attempt]) -> tuple[Attempt, list[Attempt]]:
    """Return the run that the phase is about, and the confirmations made of it since."""
    index = max(i for i, row in enumerate(runs) if i == 0 or row.reason is not RunReason.CONFIRM)
    return runs[index], list(runs[index + 1 :])


def _next_confirmation(
    plan: Plan, phase: str, first: Attempt, done: Sequence[Attempt]
) -> Action | None:
    """Return the next rerun that a NO_GO needs before it is one, or None."""
    if plan.confirm is None or first.detector not in plan.confirm.on:
        return None
    if first.detector in HANGS and first.logging_off:
        return None  # R15: NO_GO at once
    if not done:
        return _confirm(phase, None, "rerun unchanged before NO_GO")
    unchanged = done[0]
    variants = _variants(plan, first)
    made = len(done) - 1
    if unchanged.verdict is not Verdict.NO_GO or made >= len(variants):
        return None
    return _confirm(phase, variants[made], f"reproduced: variant {made + 1} of {len(variants)}")


def _confirm(phase: str, change: Mapping[str, Any] | None, text: str) -> Action:
    return Action(
        kind=ActionKind.START_RUN,
        text=text,
        phase=phase,
        reason=RunReason.CONFIRM,
        change=change,
    )


def _variants(plan: Plan, first: Attempt) -> list[dict[str, Any]]:
    """Return the variants of a confirmation; a hang with logging on is tried with it off (R15)."""
    rows = [row.model_dump(mode="json") for row in (plan.confirm.variants if plan.confirm else [])]
    if first.detector in HANGS:
        rows.insert(0, {"env": dict(LOGGING_OFF), "train": {}})
    return rows


def _history_of(first: Attempt, confirmations: Sequence[Attempt]) -> dict[str, Any]:
    history: dict[str, Any] = {}
    if confirmations:
        history["confirmations"] = [
            {
                "run": row.run,
                "variant": None if row.change is None else dict(row.change),
                "verdict": None if row.verdict is None else row.verdict.value,
                "code": row.outcome.code.value,
            }
            for row in confirmations
        ]
    return {**history, **_remedied(first)}


def _remedied(first: Attempt) -> dict[str, Any]:
    if first.reason is not RunReason.REMEDY or first.change is None:
        return {}
    patch = {name: value for name, value in first.change.items() if name != "diagnosis"}
    return {"remedy": {"diagnosis": first.change.get("diagnosis", "unknown"), "patch": patch}}


def _remedy(plan: Plan, phase: str, failed: Attempt, runs: Sequence[Attempt]) -> Action | None:
    """Return the rerun with the plan's remedy for the diagnosis, while any is left."""
    used = sum(row.reason is RunReason.REMEDY for row in runs)
    patch = plan.remedies.get(failed.diagnosis or "")
    if patch is None or used >= plan.max_remedies or failed.reason is RunReason.REMEDY:
        return None
    return Action(
        kind=ActionKind.START_RUN,
        text=f"{failed.diagnosis}: remedy {used + 1} of {plan.max_remedies}",
        phase=phase,
        reason=RunReason.REMEDY,
        change={"diagnosis": failed.diagnosis, **patch},
    )


def _conclude(
    plan: Plan,
    phase: str,
    first: Attempt,
    verdict: Verdict | None,
    history: Mapping[str, Any],
    conditions: Sequence[OpenCondition],
) -> Action:
    history = history or _remedied(first)
    if verdict is Verdict.GO and history.get("remedy"):
        verdict = Verdict.CONDITIONAL_GO
    if verdict in (Verdict.GO, Verdict.CONDITIONAL_GO):
        changed = any(row["variant"] for row in history.get("confirmations", []))
        action = decide_promotion(plan, phase, conditions)
        if action.kind is ActionKind.START_PHASE:
            action = _with_approval(plan.phase(phase), verdict, action, by_variant=changed)
    elif verdict is Verdict.NO_GO:
        action = Action(kind=ActionKind.FINISH, text=f"{phase} is NO_GO")
    else:
        action = Action(kind=ActionKind.AWAIT_DECISION, text=f"{phase} is inconclusive")
    return replace(action, record=True, about=first.run, history=history, verdict=verdict)


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
        return Action(kind=ActionKind.FINISH, text="every phase passed", missed=late)
    return Action(
        kind=ActionKind.START_PHASE,
        text=f"{phase} passed",
        phase=following.name,
        reason=RunReason.FIRST,
        missed=late,
    )


def _told(late: Sequence[Condition]) -> str:
    return f"conditions missed: {', '.join(row.id for row in late)}"


def _with_approval(phase: Phase, verdict: Verdict, action: Action, *, by_variant: bool) -> Action:
    """Return the promotion, or the wait for a person where the plan (or a variant) asks for one."""
    asked = phase.approve == "always" or (
        phase.approve == "on_conditional" and verdict is Verdict.CONDITIONAL_GO
    )
    if not asked and not by_variant:
        return action
    return Action(
        kind=ActionKind.AWAIT_APPROVAL,
        text=f"{phase.name} is {verdict}: {action.phase} waits for an approval",
        phase=action.phase,
        missed=action.missed,
    )


def decide_override(
    plan: Plan,
    phase: str,
    verdict: Verdict,
    *,
    awaiting: bool,
    conditions: Sequence[OpenCondition] = (),
) -> Action:
    """Return what a person's verdict does: it acts while awaited, and only re-labels otherwise.

    Args:
        plan: the experiment's plan.
        phase: the phase that the verdict is about.
        verdict: as the person said.
        awaiting: whether the experiment is awaiting a decision.
        conditions: as in `decide`.
    """
    if not awaiting:
        return Action(kind=ActionKind.NOTHING, text="re-labelled", verdict=verdict)
    if verdict in (Verdict.GO, Verdict.CONDITIONAL_GO):
        return replace(decide_promotion(plan, phase, conditions), verdict=verdict)
    if verdict is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=f"{phase} was called NO_GO", verdict=verdict)
    return Action(kind=ActionKind.AWAIT_DECISION, text=f"{phase} stays open", verdict=verdict)
