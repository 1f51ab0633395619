"""What happens next: `verdict + history + plan → action`, as a pure function.

A run that infrastructure ended is retried from the last checkpoint. A NO_GO that the plan wants
confirmed is first rerun unchanged (R15). If it fails again, the plan's variants run, one after
another, until one passes. A remedy is a patch that the plan has for a known failure. Confirmations
and remedies begin at the last checkpoint before the failure. Everything else concludes the phase.

A preempted run has not failed: its host was taken away. It counts neither as a retry nor towards a
restart storm. After `IN_VAIN` preemptions without a later checkpoint, a person is asked.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gonogo.contract.decision import PASSING, Condition, Verdict, worst
from gonogo.contract.facts import Confirmation, Facts, FailedBefore, History, Remedy
from gonogo.contract.order import CarriedRemedy, OpenCondition, RunReason
from gonogo.contract.outcome import TAKEN_OVER, Outcome, OutcomeClass, OutcomeCode
from gonogo.contract.plan import Plan
from gonogo.contract.workload import RecordedPatch
from gonogo.judge.gate.built_in import IN_WEIGHTS
from gonogo.judge.gate.conditions import END, ON_MISS, has_expired, missed
from gonogo.judge.gate.verdict import Judgement
from gonogo.watch.detectors.death import Start, is_storm

SAY_NOTHING = (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
"""Ends that say nothing about a phase: its host failed, or a person stopped it."""


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
    """One ended run of a phase, as far as the next action depends on it."""

    run: str
    reason: RunReason
    outcome: Outcome
    verdict: Verdict | None
    """Verdict of this run alone (`judge` without history)."""
    detector: str | None = None
    diagnosis: str | None = None
    failed: tuple[str, ...] = ()
    launched: bool = True
    started_at: float | None = None
    """Unix seconds of the launch."""
    durable_step: int = 0
    """Highest step of a verified checkpoint when it ended; 0 for none."""
    change: Mapping[str, Any] | None = None
    """`env` and `train` patch of a variant or a remedy; None when unchanged."""
    step: int | None = None
    """Step at which it ended: that of the halt, else the last one seen."""

    @property
    def passed(self) -> bool:
        """Whether the run passes its phase."""
        return self.verdict in (Verdict.GO, Verdict.CONDITIONAL_GO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do next, and what to record first."""

    kind: ActionKind
    text: str
    phase: str | None = None
    reason: RunReason | None = None
    resume: bool = False
    resume_of: str | None = None
    """Run whose checkpoint that is; None: the phase's last."""
    before: int | None = None
    """Only a checkpoint of an earlier step than this."""
    change: Mapping[str, Any] | None = None
    record: bool = False
    """Whether a decision about the phase is recorded now."""
    about: str | None = None
    history: History | None = None
    """What `with_history` puts beside those facts."""
    verdict: Verdict | None = None
    """Verdict of the phase that `judge` comes to with that history."""
    missed: tuple[Condition, ...] = ()
    """Conditions that guarded the next phase and were not met."""
    expires_s: float | None = None
    """How long an approval can be given, seconds; None: for ever."""


def build_attempt(
    run: str,
    reason: RunReason,
    facts: Facts,
    judgement: Judgement,
    *,
    launched: bool = True,
    started_at: float | None = None,
    durable_step: int = 0,
    change: Mapping[str, Any] | None = None,
) -> Attempt:
    """Return an ended run in the form that `decide` takes.

    Raises:
        ValueError: the facts hold no outcome, so the run has not ended.
    """
    if judgement.outcome is None:
        raise ValueError(f"{run} has not ended")
    halt = facts.latched()
    last_step = max((row.last_step for row in facts.ranks.values()), default=None)
    return Attempt(
        run=run,
        reason=reason,
        outcome=judgement.outcome,
        verdict=judgement.verdict,
        detector=None if halt is None else halt.detector,
        diagnosis=judgement.diagnosis,
        failed=tuple(judgement.failed),
        launched=launched and judgement.outcome.code is not OutcomeCode.PREFLIGHT_FAILED,
        started_at=started_at,
        durable_step=durable_step,
        change=change,
        step=last_step if halt is None or halt.step is None else halt.step,
    )


IN_VAIN = 10
"""After so many preemptions in a row without a later checkpoint, a person is asked."""
KEPT_BY = (
    *("config", "dtype", "engine", "eval", "optim", "parallel", "steps"),
    *("attention.backend", "batch.accumulate", "model.gradient_checkpointing"),
    *("loader.batch_limit_s", "loader.cache_gb", "loader.first_batch_limit_s"),
)
"""What a training configuration may change and still resume from a checkpoint that was made without
the change, as in `nsa.checkpoint`."""


def decide_retry(plan: Plan, phase: str, attempts: Sequence[Attempt], now: float) -> Action:
    """Return what follows a run that infrastructure ended: the last of `attempts`."""
    last = attempts[-1]
    failed = [row for row in _ended_by_infra(attempts) if not _was_preempted(row)]
    text = f"{last.outcome.code} after {plan.retry.infra} retries"
    again = len(failed) <= plan.retry.infra
    if _was_preempted(last):
        text = f"preempted {IN_VAIN} times without a later checkpoint: set a longer time limit,"
        text += " or save checkpoints more often, then resume"
        again = not _gets_nowhere(attempts)
    storm = is_restart_storm(plan, attempts, now)
    if storm:
        text = f"restart_storm: {len(failed)} attempts failed without getting further"
    if storm or not again:
        return Action(
            kind=ActionKind.FINISH if storm else ActionKind.AWAIT_DECISION,
            text=text,
            record=True,
            about=last.run,
            history=History(restart_storm=storm),
            verdict=Verdict.NO_GO if storm else Verdict.INCONCLUSIVE,
        )
    retry = f"{last.outcome.code}: retry {len(failed)} of {plan.retry.infra}"
    keeps = last.reason in (RunReason.CONFIRM, RunReason.REMEDY)
    return Action(
        kind=ActionKind.START_RUN,
        text="preempted: it resumes from its last checkpoint" if _was_preempted(last) else retry,
        phase=phase,
        reason=last.reason if keeps else RunReason.RESUME,
        resume=True,
        change=last.change,
    )


def is_restart_storm(plan: Plan, attempts: Sequence[Attempt], now: float) -> bool:
    """Say whether retrying is a storm (D25) by the plan's settings."""
    trailing = _ended_by_infra(attempts)
    starts = [
        Start(at=row.started_at, durable_step=row.durable_step)
        for row in trailing
        if row.launched and not _was_preempted(row)
    ]
    reached = _reached(attempts[: len(attempts) - len(trailing)])
    return is_storm(starts, before_step=reached, now=now, settings=plan.watch.restart_storm)


def _gets_nowhere(attempts: Sequence[Attempt]) -> bool:
    """Say whether the last attempts were all preempted before they had got further."""
    recent, before = attempts[-IN_VAIN:], attempts[:-IN_VAIN]
    preempted = len(recent) == IN_VAIN and all(map(_was_preempted, recent))
    return preempted and _reached(recent) <= _reached(before)


def _reached(attempts: Iterable[Attempt]) -> int:
    return max((row.durable_step for row in attempts), default=0)


def _was_preempted(attempt: Attempt) -> bool:
    return attempt.outcome.code is OutcomeCode.PREEMPTED


def _ended_by_infra(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the last attempts, as long as infrastructure ended them."""
    others = (
        at for at, row in enumerate(attempts, 1) if row.outcome.klass is not OutcomeClass.INFRA
    )
    return list(attempts[max(others, default=0) :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The first failure of a phase, and the runs that answer whether it comes again."""

    failed: Attempt
    reruns: tuple[Attempt, ...]

    @property
    def answer(self) -> Attempt:
        """The run that the phase is about: the one that passes, else one that decides nothing."""
        last = {_named(row.change): row for row in self.reruns}
        unchanged = last.pop(None, self.failed)
        if unchanged.verdict is not Verdict.NO_GO:
            return unchanged
        others = sorted(last.values(), key=lambda row: not row.passed)
        return next((row for row in others if row.verdict is not Verdict.NO_GO), self.failed)


def question_of(runs: Sequence[Attempt]) -> Question:
    """Return what a phase's runs are about: a failure and its reruns, else the last run alone.

    A remedy begins a new question. Any other run after a NO_GO is a rerun of the failure, so that
    the failure is not forgotten.
    """
    last = runs[-1]
    failures = (at for at, row in enumerate(runs) if row.verdict is Verdict.NO_GO)
    first = next(failures, None)
    if first is None or last.reason is RunReason.REMEDY:
        return Question(failed=last, reruns=())
    since = (row for row in runs[first + 1 :] if row.reason is not RunReason.REMEDY)
    return Question(failed=runs[first], reruns=tuple(since))


def next_confirmation(plan: Plan, phase: str, question: Question) -> Action | None:
    """Return the next rerun that a NO_GO needs before it is final, or None."""
    failed = question.failed
    if plan.confirm is None or failed.detector not in plan.confirm.on:
        return None
    if failed.reason is RunReason.REMEDY or question.answer.verdict is not Verdict.NO_GO:
        return None
    made = [row.change for row in question.reruns]
    if None not in made:
        text = "rerun unchanged before NO_GO"
        return _rerun(plan, phase, failed, RunReason.CONFIRM, None, text)
    variants = [row.document() for row in plan.confirm.variants]
    for number, change in enumerate(variants, 1):
        if change not in made:
            text = f"reproduced: variant {number} of {len(variants)}"
            return _rerun(plan, phase, failed, RunReason.CONFIRM, change, text)
    return None


def next_remedy(
    plan: Plan,
    phase: str,
    failed: Attempt,
    runs: Iterable[Attempt],
    carried: Sequence[CarriedRemedy] = (),
) -> Action | None:
    """Return the rerun with the plan's remedy for the diagnosis, while any is left.

    A remedy that uncovers another failure is kept, and the next one is laid over it. The same
    remedy is not tried twice, nor one that an earlier phase left (`carried`).
    """
    name = failed.diagnosis or ""
    patch = plan.remedies.get(name)
    changes = (row.change or {} for row in runs if row.reason is RunReason.REMEDY)
    used = {change.get("diagnosis") for change in changes}
    tried = used | {row.diagnosis for row in carried}
    if patch is None or name in tried or len(used) >= plan.max_remedies:
        return None
    before = failed.change if failed.reason is RunReason.REMEDY else None
    change = {**laid_over(before or {}, patch.document()), "diagnosis": name}
    text = f"{name}: remedy {len(used) + 1} of {plan.max_remedies}"
    return _rerun(plan, phase, failed, RunReason.REMEDY, change, text)


def _rerun(
    plan: Plan,
    phase: str,
    failed: Attempt,
    reason: RunReason,
    change: Mapping[str, Any] | None,
    text: str,
) -> Action:
    ended_early = failed.outcome.klass is not OutcomeClass.SUCCESS
    return Action(
        kind=ActionKind.START_RUN,
        text=text,
        phase=phase,
        reason=reason,
        resume=ended_early and failed.step is not None and keeps_checkpoints(plan, change),
        resume_of=failed.run,
        before=failed.step,
        change=change,
    )


def keeps_checkpoints(plan: Plan, change: Mapping[str, Any] | None) -> bool:
    """Say whether a run with this change can resume from a checkpoint made without it."""
    found = change or {}
    train = dict(found.get("train") or {})
    if not plan.ours:
        return not train and not found.get("workload")
    kept = tuple(f"{path}." for path in KEPT_BY)
    return all(path.startswith(kept) for path in _paths(train))


def _paths(patch: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of each value of a patch, with a dot at its end."""
    for name, value in patch.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}."


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one patch over another, mappings key by key."""
    found = dict(base)
    for name, value in over.items():
        before = found.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            found[name] = laid_over(before, value)
        else:
            found[name] = value
    return found


def _named(change: Mapping[str, Any] | None) -> str | None:
    """Return a change as text that can be compared; None: nothing is changed."""
    return None if change is None else json.dumps(change, sort_keys=True)


def history_of(attempts: Sequence[Attempt], question: Question, judged: Attempt) -> History | None:
    """Return what the phase's other runs say beside the judged one; None if there is nothing."""
    asked = (question.failed, *question.reruns) if question.reruns else ()
    found: dict[str, Any] = {
        "confirmations": [_confirmation(row) for row in asked],
        "failed_before": list(_failed_before(attempts, asked, judged)),
        "remedy": remedied(judged),
    }
    told = {name: value for name, value in found.items() if value}
    return History(**told) if told else None


def _failed_before(
    attempts: Sequence[Attempt], asked: Sequence[Attempt], judged: Attempt
) -> Iterator[FailedBefore]:
    """Yield the earlier runs that failed something which the judged run's gate cannot see.

    A failure that reruns or a remedy answer has its own condition. What stays in the weights counts
    only where a checkpoint was left.
    """
    for row in attempts[: attempts.index(judged)]:
        answered = row in asked or (
            judged.reason is RunReason.REMEDY and row.verdict is Verdict.NO_GO
        )
        names = [name for name in row.failed if name not in IN_WEIGHTS or row.durable_step]
        if names and not answered:
            yield FailedBefore(run=row.run, code=row.outcome.code, criteria=names)


def _confirmation(row: Attempt) -> Confirmation:
    return Confirmation(
        run=row.run,
        variant=None if row.change is None else RecordedPatch.model_validate(row.change),
        verdict=row.verdict,
        code=row.outcome.code,
        step=row.step,
    )


def remedied(run: Attempt) -> Remedy | None:
    """Return the remedy under which a run was made; None without one."""
    if run.reason is not RunReason.REMEDY or run.change is None:
        return None
    patch = {name: value for name, value in run.change.items() if name != "diagnosis"}
    return Remedy(diagnosis=run.change.get("diagnosis") or "unknown", patch=patch)


def left_by(plan: Plan, phase: str, attempts: Sequence[Attempt]) -> CarriedRemedy | None:
    """Return the remedy that a passed phase leaves to the phases after it, or None."""
    runs = [row for row in attempts if row.outcome.klass not in SAY_NOTHING]
    if not runs or not plan.carry_remedies:
        return None
    judged = question_of(runs).answer
    remedy = remedied(judged)
    if remedy is None or judged.outcome.klass is not OutcomeClass.SUCCESS:
        return None
    return CarriedRemedy(diagnosis=remedy.diagnosis, patch=remedy.patch, since=phase)


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
        attempts: its ended runs in the order of their start, at least one.
        conditions: every condition of the experiment in its present state.
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
    """Return what follows when nobody gave an approval in time; None while it can be given."""
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
    """Return what a person's verdict does: it acts while a decision is awaited, else re-labels."""
    if not awaiting:
        return Action(kind=ActionKind.NOTHING, text="re-labelled", verdict=verdict)
    if verdict in PASSING:
        return replace(decide_promotion(plan, phase, conditions), verdict=verdict)
    if verdict is Verdict.NO_GO:
        return Action(kind=ActionKind.FINISH, text=f"{phase} was called NO_GO", verdict=verdict)
    return Action(
        kind=ActionKind.AWAIT_DECISION, text=f"{phase} was called INCONCLUSIVE", verdict=verdict
    )
