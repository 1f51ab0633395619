"""Which programs and names does a plan ask a host for, and does a host that lists some take it?"""

from collections.abc import Collection, Iterator, Mapping

from gonogo.contract.patch import Patch
from gonogo.contract.plan import Plan
from gonogo.contract.workload import ANY, is_allowed
from gonogo.listed_names import is_listed

Layer = tuple[str, Patch]
"""Where in the plan, and what is changed there."""


def patches(plan: Plan) -> Iterator[Layer]:
    """Yield every patch that a plan may lay over a phase: variants, then remedies."""
    for index, variant in enumerate(plan.confirm.variants if plan.confirm else []):
        yield f"confirm.variants.{index}", variant
    for name, remedy in plan.remedies.items():
        yield f"remedies.{name}", remedy


def programs(plan: Plan) -> set[str]:
    """Return the entry or the first words of the commands that any run of a plan starts."""
    layers: list[Patch] = [*plan.phases, *(patch for _, patch in patches(plan))]
    commands = [plan.workload.command, *(layer.workload.command for layer in layers)]
    found = {command[0] for command in commands if command}
    return found | ({plan.workload.program} if plan.workload.program else set())


def environments(plan: Plan) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Yield where a plan sets names of the environment, and which with what."""
    yield "workload", plan.workload.env
    yield from ((f"phases.{phase.name}", phase.env) for phase in plan.phases)
    yield from ((where, patch.env) for where, patch in patches(plan))


def unlisted(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield where a plan sets a name that is not on every host's list, and the name."""
    for where, env in environments(plan):
        yield from ((where, name) for name in env if not is_listed(name))


def allows(plan: Plan, allow: Collection[str], allow_env: Collection[str]) -> bool:
    """Say whether a worker that allows this takes every run of a plan.

    Args:
        plan: the plan.
        allow: programs, as in `GONOGO_WORKER_ALLOW`.
        allow_env: names, as in `GONOGO_WORKER_ALLOW_ENV`.
    """
    if plan.ours:
        return True
    if not all(is_allowed(name, allow, plan.workload.cwd) for name in programs(plan)):
        return False
    return ANY in allow_env or all(name in allow_env for _, name in unlisted(plan))


def needs(plan: Plan) -> str | None:
    """Return what a worker has to allow for a foreign plan, in a sentence; None for ours."""
    if plan.ours:
        return None
    names = ", ".join(sorted(programs(plan)))
    text = f"GONOGO_WORKER_ALLOW with {names} (or any)"
    more = sorted({name for _, name in unlisted(plan)})
    return f"{text} and GONOGO_WORKER_ALLOW_ENV with {', '.join(more)}" if more else text
