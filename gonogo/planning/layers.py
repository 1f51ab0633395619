"""The configuration, environment and start of one run: plan, phase and patch over each other.

The last layer that sets a key wins. Our own workload first gets the phase's steps and data, and the
workload's `parallel`. So a patch may change data and parallel, but never the steps of a gate.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.workload import Patch
from gonogo.planning.workloads.known import WorkloadSchema

OF_THE_PHASE = {
    "steps": "phases.NAME.steps",
    "data": "phases.NAME.data",
    "parallel": "workload.parallel",
}
"""What a plan says elsewhere than in `train`, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Configuration, environment and start of a run."""

    train: dict[str, Any]
    env: dict[str, str]
    world_size: int
    parallel: str
    command: list[str] | None


def lay(
    plan: Plan,
    phase: Phase,
    train: Mapping[str, Any],
    change: Patch | None = None,
    *,
    carried: Sequence[Patch] = (),
    schema: WorkloadSchema | None = None,
) -> Laid:
    """Return what a run of a phase gets; unchanged parts are shared with `train`.

    Args:
        plan: the experiment's plan.
        phase: which phase of it.
        train: the plan's whole training configuration.
        change: a variant's, remedy's or campaign's patch, over the phase's own.
        carried: remedies of earlier phases, over the phase's own and under `change`.
        schema: gives the defaults of missing sections.
    """
    layers = [phase, *carried] if change is None else [phase, *carried, change]
    found = dict(train)
    if plan.ours:
        found.update(steps=phase.steps, data=phase.data, parallel=plan.workload.parallel)
    env: dict[str, str] = dict(plan.workload.env)
    world_size, command = plan.workload.world_size, plan.workload.command
    for layer in layers:
        env = _environment(env, layer.env)
        found = merged(found, layer.train, schema)
        world_size = layer.workload.world_size or world_size
        command = layer.workload.command or command
        if plan.ours and layer.workload.parallel is not None:
            found["parallel"] = layer.workload.parallel
    parallel = found["parallel"] if plan.ours else _parallel(plan, layers)
    return Laid(train=found, env=env, world_size=world_size, parallel=parallel, command=command)


def merged(
    base: Mapping[str, Any],
    patch: Mapping[str, Any],
    schema: WorkloadSchema | None = None,
    at: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return `base` with `patch` laid over it, mappings key by key.

    A section that `base` lacks begins with what its absence amounts to, where the schema says it.
    """
    result = dict(base)
    for key, value in patch.items():
        below = result.get(key)
        place = (*at, key)
        if isinstance(value, Mapping):
            if below is None and schema is not None:
                below = schema.section_default(place)
            if isinstance(below, Mapping):
                result[key] = merged(below, value, schema, place)
                continue
        result[key] = plain_copy(value)
    return result


def _environment(base: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    found = {**base, **patch}
    return {name: value for name, value in found.items() if value is not None}


def _parallel(plan: Plan, layers: Iterable[Patch]) -> str:
    said = [layer.workload.parallel for layer in layers if layer.workload.parallel is not None]
    return said[-1] if said else plan.workload.parallel
