"""How does a submission become what an experiment freezes? Pure, but for reading configurations.

`resolve_plan` lays the overrides over the plan, finds the whole training configuration, and refuses
what would fail later, every problem at once. `ordering.build_order` writes one run's order from it.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from typing import Any

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, Problem, Rejected
from gonogo.contract.fault import parse_fault
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.plan import Plan
from gonogo.planning.checks import problems_in
from gonogo.planning.layers import merged
from gonogo.planning.ordering import FROZEN as FROZEN
from gonogo.planning.ordering import build_command_order as build_command_order
from gonogo.planning.ordering import build_order as build_order
from gonogo.planning.ordering import gate_of
from gonogo.planning.overrides import overridden
from gonogo.planning.problems import problems_of, refuse, rejected
from gonogo.planning.source import ResolvedPlan as ResolvedPlan
from gonogo.planning.source import bundled_plan, bundled_plan_names
from gonogo.planning.source import checkout_root as checkout_root
from gonogo.planning.source import load_train_config as load_train_config
from gonogo.planning.workloads.known import WorkloadSchema, workload_schema

LoadConfig = Callable[[str], Mapping[str, Any]]
SchemaOf = Callable[[str | None], WorkloadSchema | None]


def resolve_plan(
    data: Mapping[str, Any],
    sets: Mapping[str, Any] | None = None,
    *,
    load_config: LoadConfig = load_train_config,
    schema_of: SchemaOf = workload_schema,
) -> ResolvedPlan:
    """Return the frozen form of a submission.

    Args:
        data: the plan as data.
        sets: dotted path → value; `fault` is a fault to inject.
        load_config: name → training configuration of our workload.
        schema_of: entry point → what its workload takes, None where nobody here can say.
    """
    sets = dict(sets or {})
    fault = sets.pop("fault", None)
    data, wrong = overridden(data, sets)
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        found = chain(wrong, problems_of(error, data))
        raise rejected(found, "set " if wrong else "plan: ") from error
    if plan.campaign is not None:
        raise Rejected(
            f"plan {plan.name} is a campaign, which compares several runs:"
            " gonogo campaign submit takes it as it is"
        )
    if fault is not None:
        if not plan.allow_faults:
            raise Rejected(f"plan {plan.name} does not allow faults (allow_faults: false)")
        parse_fault(str(fault), plan)
    schema = schema_of(plan.workload.program)
    train = dict(plan.train)
    if plan.ours:
        train = merged(load_config(plan.train["config"]), plan.train, schema)
    refuse(chain(wrong, problems_in(plan, train, schema)), "set " if wrong else "plan: ")
    for phase in plan.phases:  # every gate must fit the profile
        gate_of(phase, hardware_profiles()[plan.profile], plan.profile)
    resolved = ResolvedPlan.of(plan, train, None if fault is None else str(fault))
    try:
        resolved.plan_digest()
    except Corrupt as error:
        raise rejected([Problem(path="", message=error.detail)]) from error
    return resolved


def is_bundled(name: str, plan: Mapping[str, Any]) -> bool:
    """Say whether a frozen plan is the one of that name that ships with gonogo, unchanged."""
    return name in bundled_plan_names() and _bundled_frozen(name) == dict(plan)


@cache
def _bundled_frozen(name: str) -> dict[str, Any]:
    return resolve_plan(bundled_plan(name)).plan
