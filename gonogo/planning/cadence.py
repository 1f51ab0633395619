"""When is the first checkpoint of a phase to be expected? Refused where that is days away.

A run loses everything before its first checkpoint to its first fault. The floor of the hardware
profile, or of the plan, says how long a step may take.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gonogo.contract.errors import Problem
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.plan import Phase, Plan

LATEST_S = 24 * 3600.0


def late_checkpoints(plan: Plan, train: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the phases whose first checkpoint is to be expected later than `LATEST_S`."""
    step_s = expected_step_s(plan, train)
    for phase in plan.phases:
        first_s = first_checkpoint_s(phase, step_s)
        if first_s is None or first_s <= LATEST_S:
            continue
        said = phase.checkpoint.model_dump(include={"every_steps", "every_s"}, exclude_none=True)
        found = ", ".join(f"{name} {value:g}" for name, value in said.items()) or "none"
        pace = "" if step_s is None else f" at {step_s:.0f} s a step (the floor's pace)"
        yield Problem(
            path=f"phases.{phase.name}.checkpoint",
            message=f"found {found}: the first checkpoint comes after {first_s / 3600:.0f} h{pace};"
            f" expected every_steps or every_s so that it comes within {LATEST_S / 3600:.0f} h",
        )


def expected_step_s(plan: Plan, train: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step at the floor that the plan or its profile names."""
    floor = plan.watch.slow.floor_tok_s or hardware_profiles()[plan.profile].floor_tok_s
    model, batch = train.get("model"), train.get("batch")
    if floor is None or not isinstance(model, Mapping) or not isinstance(batch, Mapping):
        return None
    seq_len, sequences = model.get("seq_len"), batch.get("global_seqs")
    if not isinstance(seq_len, int | float) or not isinstance(sequences, int | float):
        return None
    return seq_len * sequences / floor


def first_checkpoint_s(phase: Phase, step_s: float | None) -> float | None:
    """Return when a phase's first checkpoint is to be expected, in seconds; None = nothing says.

    The last step is saved too; without a cadence all is lost until the phase ends.
    """
    cadence = phase.checkpoint
    times = [] if cadence.every_s is None else [cadence.every_s]
    if step_s is not None:
        times.append(min(cadence.every_steps or phase.steps, phase.steps) * step_s)
    return min(times, default=None)
