"""Reruns that answer a failure: confirmations, remedies, and what they leave to later phases.

A NO_GO that the plan wants confirmed is first rerun unchanged (R15). If it fails again, the plan's
variants run, one after another, until one passes. A remedy is a patch that the plan has for a known
failure. Each rerun begins at the last checkpoint before the failure, and goes to the phase's end.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.decision import Verdict
from gonogo.contract.facts import Confirmation, FailedBefore, History, Remedy
from gonogo.contract.order import CarriedRemedy, RunReason
from gonogo.contract.outcome import Detector, OutcomeClass, OutcomeCode
from gonogo.contract.patch import RecordedPatch
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import SAY_NOTHING, Action, ActionKind, Attempt
from gonogo.judge.gate.diagnosis import LOGGING_OFF
from gonogo.judge.gate.identity import IN_WEIGHTS

HANGS = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})

_LEARNED = frozenset({OutcomeCode.DIVERGED, OutcomeCode.NON_FINITE})
"""Failures of what a run learns, which stays in the weights that it leaves."""
_ANY: frozenset[str] = frozenset()
_KEPT_BY: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("config", "dtype", "engine", "eval", "optim", "parallel", "steps"), _ANY),
    "attention": frozenset({"backend"}),
    "batch": frozenset({"accumulate"}),
    "loader": frozenset({"batch_limit_s", "cache_gb", "first_batch_limit_s"}),
    "model": frozenset({"gradient_checkpointing"}),
}
"""What a training configuration may change (of a section: all, or these keys) and still resume from
a checkpoint that was made without the change, as in `nsa.resume`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The first failure of a phase, and the runs that answer whether it comes again."""

    failed: Attempt
    reruns: tuple[Attempt, ...]

    @property
    def answer(self) -> Attempt:
        """The run that the phase is about: the one that passes, else one that decides nothing.

        Variants count only when the last unchanged rerun failed again.
        """
        last = {_named(row.change): row for row in self.reruns}
        unchanged = last.pop(None, self.failed)
        if unchanged.verdict is not Verdict.NO_GO:
            return unchanged
        others = sorted(last.values(), key=lambda row: not row.passed)
        return next((row for row in others if row.verdict is not Verdict.NO_GO), self.failed)


def question_of(runs: Sequence[Attempt]) -> Question:
    """Return what a phase's runs are about: a failure and its reruns, else the last run alone.

    A remedy begins a new question. Any other run after a NO_GO is a rerun of the failure, whoever
    started it, so that nobody forgets the failure.
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
    if failed.detector in HANGS and failed.logging_off:
        return None  # R15: NO_GO at once
    if failed.reason is RunReason.REMEDY or question.answer.verdict is not Verdict.NO_GO:
        return None
    made = [row.change for row in question.reruns]
    if None not in made:
        text = "rerun unchanged before NO_GO"
        return rerun(plan, phase, failed, RunReason.CONFIRM, None, text)
    variants = [row.document() for row in plan.confirm.variants]
    if failed.detector in HANGS and plan.ours:
        variants.insert(0, {"env": dict(LOGGING_OFF)})  # R15: a hang with logging on
    for number, change in enumerate(variants, 1):
        if change not in made:
            text = f"reproduced: variant {number} of {len(variants)}"
            return rerun(plan, phase, failed, RunReason.CONFIRM, change, text)
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
    return rerun(plan, phase, failed, RunReason.REMEDY, change, text)


def rerun(
    plan: Plan,
    phase: str,
    failed: Attempt,
    reason: RunReason,
    change: Mapping[str, Any] | None,
    text: str,
) -> Action:
    """Return the rerun of a failed run, with what is changed."""
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
    return all(_keeps(name, value) for name, value in train.items())


def _keeps(name: str, value: Any) -> bool:
    keys = _KEPT_BY.get(name)
    if keys is None or not isinstance(value, Mapping):
        return keys == _ANY
    return keys == _ANY or set(value) <= keys


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


# ---- what a decision records of the other runs --------------------------------------------------


def history_of(attempts: Sequence[Attempt], question: Question, judged: Attempt) -> History | None:
    """Return what the phase's other runs say beside the judged one; None if there is nothing.

    Args:
        attempts: every run of the phase, also those that infrastructure or an operator ended.
        question: the failure and its reruns.
        judged: the run that the decision is about.
    """
    asked = (question.failed, *question.reruns) if question.reruns else ()
    found: dict[str, Any] = {
        "confirmations": [_confirmation(row) for row in asked],
        "failed_before": list(_failed_before(attempts, judged)),
        "remedy": remedied(judged),
    }
    told = {name: value for name, value in found.items() if value}
    return History(**told) if told else None


def _failed_before(attempts: Sequence[Attempt], judged: Attempt) -> Iterable[FailedBefore]:
    """Yield the runs whose failed criteria count against the judged run.

    These are earlier runs of the same order, and the runs whose steps are in the judged run's
    weights. The gate of the judged run sees neither. The rerun of a failure answers for what the
    failure makes worse, unless the weights keep it.
    """
    behind = _behind(attempts, judged)
    earlier = {row.run for row in attempts[: attempts.index(judged)] if row.change == judged.change}
    for row in attempts:
        inside = row.run in behind
        learned = inside and row.outcome.code in _LEARNED
        names = [
            name
            for name in row.failed
            if (learned or name not in row.explained)
            and (inside or (row.run in earlier and name not in IN_WEIGHTS))
        ]
        if names and row is not judged:
            yield FailedBefore(run=row.run, code=row.outcome.code, criteria=names)


def _behind(attempts: Iterable[Attempt], judged: Attempt) -> set[str]:
    """Return the runs from whose checkpoints a run resumes, directly or through others."""
    known = {row.run: row for row in attempts}
    behind: set[str] = set()
    at = judged.began_with
    while at is not None and at in known and at not in behind:
        behind.add(at)
        at = known[at].began_with
    return behind


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
    """Return the remedy that a phase which has passed leaves to the phases after it, if any.

    A later phase then does not have to fail in the same way first. A remedy under which no run went
    to the last step is not carried on.
    """
    runs = [row for row in attempts if row.outcome.klass not in SAY_NOTHING]
    return left_by_run(plan, phase, question_of(runs).answer) if runs else None


def left_by_run(plan: Plan, phase: str, run: Attempt) -> CarriedRemedy | None:
    """Return the same for the run that the phase is about."""
    remedy = remedied(run)
    whole = run.outcome.klass is OutcomeClass.SUCCESS
    if remedy is None or not whole or not plan.carry_remedies:
        return None
    return CarriedRemedy(diagnosis=remedy.diagnosis, patch=remedy.patch, since=phase)


def _named(change: Mapping[str, Any] | None) -> str | None:
    """Return a change as text that can be compared; None: nothing is changed."""
    return None if change is None else json.dumps(change, sort_keys=True)
