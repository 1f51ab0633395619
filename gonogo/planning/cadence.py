"""When is the first checkpoint of a phase to be expected? Refused where that is days away.

50 000 steps of 4096 tokens at 45 tokens/s are 53 days: a run whose first checkpoint comes at their
end loses all of them to its first fault. The hardware profile's floor (or the plan's own) says how
long a step may take; without one only the cadence in seconds can be judged. A phase without any
cadence is one that nobody means to resume: it is let be where it ends within that time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gonogo.contract.errors import Problem
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.plan import Phase, Plan

LATEST_S = 24 * 3600.0


def late_checkpoints(plan: Plan, train: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the phases whose first checkpoint is to be expected later than `LATEST_S`, or never.

    Args:
        plan: a valid plan, overrides included.
        train: its whole training configuration.
    """
    step_s = expected_step_s(plan, train)
    for phase in plan.phases:
        first_s = first_checkpoint_s(phase, step_s)
        if first_s is not None and first_s > LATEST_S:
            yield _problem(phase, first_s, step_s)


def expected_step_s(plan: Plan, train: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step at the floor that the plan or its profile names."""
    floor = plan.watch.slow.floor_tok_s or hardware_profiles()[plan.profile].floor_tok_s
    tokens = _number(train, "model", "seq_len"), _number(train, "batch", "global_seqs")
    if floor is None or tokens[0] is None or tokens[1] is None:
        return None
    return tokens[0] * tokens[1] / floor


def first_checkpoint_s(phase: Phase, step_s: float | None) -> float | None:
    """Return when a phase's first checkpoint is to be expected, in seconds; None = nothing says.

    Where there is a cadence the last step is saved too, so a short phase ends before it; without
    any, all is lost until the phase ends.
    """
    cadence = phase.checkpoint
    times = [] if cadence.every_s is None else [cadence.every_s]
    if step_s is not None:
        times.append(min(cadence.every_steps or phase.steps, phase.steps) * step_s)
    return min(times, default=None)


def _problem(phase: Phase, first_s: float, step_s: float | None) -> Problem:
    cadence = phase.checkpoint
    found = ", ".join(
        f"{name} {value:g}"
        for name, value in (("every_steps", cadence.every_steps), ("every_s", cadence.every_s))
        if value is not None
    )
    found = found or "none"
    pace = "" if step_s is None else f" at {step_s:.0f} s a step (the floor's pace)"
    return Problem(
        path=f"phases.{phase.name}.checkpoint",
        message=f"found {found}: the first checkpoint comes after {first_s / 3600:.0f} h{pace};"
        f" expected every_steps or every_s so that it comes within {LATEST_S / 3600:.0f} h",
    )


def _number(train: Mapping[str, Any], section: str, key: str) -> float | None:
    part = train.get(section)
    value = part.get(key) if isinstance(part, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
