"""The configuration, environment and start of one run: plan, phase and patch over each other.

The last layer that sets a key wins. Our own workload first gets the phase's steps and data, and the
workload's `parallel`. So a patch may change data and parallel, but never the steps of a gate.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import hint
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.workload import Patch
from gonogo.placeholders import AT_START, fill, mentions, names_in
from gonogo.planning.programs import Layer, patches
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


def values_of(train: Mapping[str, Any], steps: int) -> dict[str, str]:
    """Return what stands for each name, but for those that are known at the start alone.

    Args:
        train: the configuration of the run; a nested key has a dotted name. A text stands as it
            is, any other value as JSON.
        steps: the last step of the phase.
    """
    values = dict(_leaves("", train))
    if "lr" not in values and "optim.lr" in values:
        values["lr"] = values["optim.lr"]
    return {**values, "steps": str(steps)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if path:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The words of a run, filled as far as the order knows them."""

    env: dict[str, str]
    command: list[str] | None = None
    args: list[str] = field(default_factory=list)
    at_start: list[str] = field(default_factory=list)
    """Which of `command`, `args` and `env` are filled again where the run is started."""


def fill_order(laid: Laid, args: Collection[str], steps: int) -> Filled:
    """Return the words of a run of a foreign program."""
    values = values_of(laid.train, steps)

    def filled(text: str) -> str:
        return fill(text, values, later=AT_START)

    command = None if laid.command is None else [filled(word) for word in laid.command]
    words = [filled(word) for word in args]
    env = {name: filled(text) for name, text in laid.env.items()}
    held = {"command": command or [], "args": words, "env": env.values()}
    return Filled(
        command=command,
        args=words,
        env=env,
        at_start=[
            name for name, texts in held.items() if any(mentions(text, AT_START) for text in texts)
        ],
    )


def unknown_placeholders(plan: Plan, train: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where a plan has a placeholder that nothing can fill, and what is wrong with it.

    Each phase is looked at, and each phase under each patch that may lie over it.
    """
    if not any("{" in text for text in _texts(plan)):
        return
    changes: list[Layer | None] = [None, *patches(plan)]
    for phase in plan.phases:
        for change in changes:
            laid = lay(plan, phase, train, None if change is None else change[1])
            yield from _unknown(plan, phase, laid, change)


def _texts(plan: Plan) -> Iterator[str]:
    layers = [*plan.phases, *(patch for _, patch in patches(plan))]
    yield from plan.workload.args
    yield from plan.workload.env.values()
    for command in (plan.workload.command, *(layer.workload.command for layer in layers)):
        yield from command or ()
    for layer in layers:
        yield from (text for text in layer.env.values() if text)


def _unknown(
    plan: Plan, phase: Phase, laid: Laid, change: Layer | None
) -> Iterator[tuple[str, str]]:
    if plan.ours and laid.command is None:
        return  # its environment has a schema of its own
    values = values_of(laid.train, phase.steps)
    layers: list[Layer] = [(f"phases.{phase.name}", phase), *([] if change is None else [change])]
    command = laid.command or ()
    at = _last([where for where, layer in layers if layer.workload.command])
    for index, word in enumerate(command):
        if index == 0 and any(names_in(word)):
            yield f"{at}.command", f"found {word!r}; the program itself takes no placeholder"
        else:
            yield from ((f"{at}.command", text) for text in _wrong(word, values))
    for word in plan.workload.args if laid.command is None else ():
        yield from (("workload.args", text) for text in _wrong(word, values))
    for name, value in laid.env.items():
        where = next((w for w, layer in reversed(layers) if name in layer.env), "workload")
        yield from ((f"{where}.env.{name}", text) for text in _wrong(value, values))


def _last(places: list[str]) -> str:
    return f"{places[-1]}.workload" if places else "workload"


def _wrong(text: str, values: Mapping[str, str]) -> Iterator[str]:
    for name in names_in(text):
        if name in AT_START:
            continue
        if name not in values:
            known = [*sorted(values), *sorted(AT_START)]
            yield f"unknown placeholder {{{name}}}; {hint(name, known)}, or {{{{{name}}}}} as text"
        elif "\0" in values[name]:
            yield f"{{{name}}}: holds characters that no process can be given"
