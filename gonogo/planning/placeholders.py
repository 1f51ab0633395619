"""What may stand in braces in a plan's words, and what is filled in? Pure.

`gonogo.placeholders` says what a placeholder is. An order is filled as far as it is known when it
is made; `{run_dir}` and `{resume}` are filled where the run is started.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.errors import hint
from gonogo.contract.plan import Phase, Plan
from gonogo.placeholders import AT_START, fill, mentions, names_in
from gonogo.planning.layers import Laid, lay
from gonogo.planning.programs import Layer, patches


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
