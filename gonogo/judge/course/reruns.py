"""From where is a phase that failed run again, and up to which step? Pure.

A rerun begins at the last checkpoint before the failure, from step 1 where there is none, and ends
soon after the step that failed: by then the failure has come again, or it has not. No gate decides
it: that is for the run in which the phase then goes on to its last step. What its own steps fail
for good of that gate counts for that run, which sees the steps after its checkpoint alone.

No checkpoint goes on with other data (`nsa.resume` refuses it), and the step that failed says
nothing of them: such a rerun begins at step 1, and answers so many steps after that.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gonogo.contract.criterion import Criterion, GateSeverity, Metric
from gonogo.contract.errors import Rejected
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector, OutcomeClass
from gonogo.contract.plan import Phase, Plan
from gonogo.judge.course.action import Action, ActionKind, Attempt
from gonogo.judge.facts.measure import is_of_several
from gonogo.judge.gate.history import is_isolating
from gonogo.planning.gates import gate_of

HANGS = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})

SUDDEN_STEPS = 50
"""Beyond the step that failed, of what happens at once: a hang, a death, a number that is none."""
GRADUAL_STEPS = 500
"""The same of what is seen over many steps: slow, starved, diverging, leaking."""
REPEATED_STEPS = 1000
"""So many steps, or a tenth of the phase, are made again at most for the gate to see enough."""
SUDDEN = HANGS | {Detector.NON_FINITE, Detector.PROCESS_DEATH, Detector.NO_FIRST_HEARTBEAT}

_ANY: frozenset[str] = frozenset()
_KEPT_BY: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("config", "dtype", "engine", "eval", "optim", "parallel", "steps"), _ANY),
    "attention": frozenset({"backend"}),
    "batch": frozenset({"accumulate"}),
    "loader": frozenset({"batch_limit_s", "cache_gb", "first_batch_limit_s"}),
    "model": frozenset({"gradient_checkpointing"}),
}
"""What a training configuration may change (of a section: all, or these keys) and still go on from
a checkpoint made without; as `nsa.resume` has it."""


def answered_by(
    plan: Plan, phase: str, failed: Attempt, change: Mapping[str, Any] | None = None
) -> int | None:
    """Return the last step of a rerun that shows whether a failure comes again.

    None: the phase's own last step, because the failure was of the whole phase, the program is not
    ours and cannot be told to end sooner, or the phase is over by then.
    """
    if failed.outcome.klass is OutcomeClass.SUCCESS or failed.step is None or not plan.ours:
        return None
    since = 0 if is_isolating(change) else failed.step
    until = since + (SUDDEN_STEPS if is_sudden(failed) else GRADUAL_STEPS)
    return until if until < plan.phase(phase).steps else None


def is_sudden(failed: Attempt) -> bool:
    """Say whether a run failed at once, or by its gate alone: not by what many steps show."""
    return failed.detector is None or failed.detector in SUDDEN


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
        until=answered_by(plan, phase, failed, change),
        change=change,
    )


def go_on(
    plan: Plan, phase: str, answered: Attempt, text: str, awaited: Iterable[Criterion]
) -> Action:
    """Return the run in which a phase goes on to its last step, as it was rerun.

    Args:
        plan: the experiment's plan.
        phase: which phase.
        answered: the rerun.
        text: what it had shown.
        awaited: as in `earlier_beginnings`.
    """
    return Action(
        kind=ActionKind.START_RUN,
        text=f"{text} to step {plan.phase(phase).steps}",
        phase=phase,
        reason=answered.reason,
        resume=True,
        resume_of=answered.run,
        before=_latest_start(plan, phase, awaited),
        change=answered.change,
    )


def keeps_checkpoints(plan: Plan, change: Mapping[str, Any] | None) -> bool:
    """Say whether a run with this change can go on from a checkpoint made without it."""
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


def _latest_start(plan: Plan, phase: str, awaited: Iterable[Criterion]) -> int | None:
    """Return the step before which a run must begin for the gate to see enough; None: anywhere."""
    row = plan.phase(phase)
    asked = (*deciding(plan, phase), *awaited)
    needed = max((_steps_of(item, row.steps) for item in asked), default=0)
    return row.steps - needed + 1 if needed > 1 else None


def deciding(plan: Plan, phase: str) -> list[Criterion]:
    """Return the criteria of a phase's gate that decide; none, where it asks for a whole run."""
    asked = _asked(plan, plan.phase(phase))
    return [row for row in asked if row.severity is not GateSeverity.ADVISORY]


def _asked(plan: Plan, phase: Phase) -> list[Criterion]:
    """Return the criteria that the plan's profile leaves of a gate; all, where nobody can say."""
    profile = hardware_profiles().get(plan.profile)
    try:
        left = phase.gate if profile is None else gate_of(phase, profile, plan.profile)[0]
    except Rejected:
        left = phase.gate
    return [row for row in left if row.id not in plan.waive]


def earlier_beginnings(
    plan: Plan, phase: str, newest: int, awaited: Iterable[Criterion] = ()
) -> range | None:
    """Return the steps after one of which a run goes on, rather than after `newest`, if cut off.

    A gate sees the steps after the checkpoint alone: where those are too few for it, the run would
    go to its end in vain. Whoever was cut off so late makes some of its steps again instead.

    Args:
        plan: the experiment's plan.
        phase: which phase.
        newest: step of its newest durable checkpoint.
        awaited: criteria of earlier phases' conditions that a run of this one may meet.

    Returns:
        None where the gate sees enough after `newest`; empty where the way back is too long.
    """
    latest = _latest_start(plan, phase, awaited)
    if latest is None or newest < latest:
        return None
    most = max(REPEATED_STEPS, plan.phase(phase).steps // 10)
    return range(max(1, newest - most), latest)


def _steps_of(criterion: Criterion, steps: int) -> int:
    """Return how many steps a criterion has to see."""
    if criterion.metric in (Metric.LOSS_FIRST, Metric.COST):  # none of who begins later
        return steps
    fewest = 2 if is_of_several(criterion) else 1
    return min(steps, criterion.warmup_steps + max(fewest, criterion.min_samples))


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
