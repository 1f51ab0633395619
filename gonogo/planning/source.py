"""Where does a plan come from? From the bundled ones by name, or as data from whoever submits it.

`parse_plan` makes a plan of data and names every problem with its path, what was found and what
was expected. What a plan must hold beyond its shape is checked in `checks`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import NotFound, Problem, hint
from gonogo.contract.plan import Plan
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts.metrics import metric_names, metric_row
from gonogo.planning.overrides import with_overrides as with_overrides
from gonogo.planning.problems import problems_of, refuse, rejected


@cache
def _bundled() -> dict[str, str]:
    folder = resources.files("gonogo.contract").joinpath("plans")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    found = {entry.name.removesuffix(".yaml"): entry.read_text() for entry in files}
    return {name: found[name] for name in sorted(found)}


@cache
def _parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(_bundled()[name])
    return found


def bundled_plan_names() -> list[str]:
    """Return the names of the experiments' plans that ship with gonogo."""
    return list(_plan_names())


@cache
def _plan_names() -> tuple[str, ...]:
    return tuple(name for name in _bundled() if "campaign" not in _parsed(name))


def bundled_campaign_names() -> list[str]:
    """Return the names of the campaigns that ship with gonogo."""
    return [name for name in _bundled() if "campaign" in _parsed(name)]


def bundled_plan(name: str) -> dict[str, Any]:
    """Return a bundled plan's YAML as data, yours to change; it is read once.

    Raises:
        NotFound: no such plan is bundled.
    """
    if name not in _bundled():
        known = [*bundled_plan_names(), *bundled_campaign_names()]
        raise NotFound(f"no plan {name!r}; there are {', '.join(known)}")
    found: dict[str, Any] = plain_copy(_parsed(name))
    return found


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `data` describes.

    Raises:
        Rejected: every problem with its path, what was found and what was expected.
    """
    plan = parse_frozen_plan(data)
    refuse(unknown_metrics(plan))
    return plan


def unknown_metrics(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each criterion whose metric nothing here knows."""
    for phase in plan.phases:
        for row in phase.gate:
            if metric_row(row.metric) is None:
                yield Problem(
                    path=f"phases.{phase.name}.gate.{row.id}.metric",
                    message=f"found {row.metric!r}; {hint(str(row.metric), metric_names())}",
                )


def parse_frozen_plan(data: Mapping[str, Any]) -> Plan:
    """Return a plan that was valid when it was submitted, whatever is installed here.

    Raises:
        Rejected: as `parse_plan` does, but for metrics of packages that are not installed.
    """
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise rejected(problems_of(error, data)) from error
