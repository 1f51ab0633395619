"""Where does a plan come from, and what is wrong with it?

`bundled_plan` gives those that ship with gonogo, `with_overrides` applies `--set`, `parse_plan`
makes a plan of data; both name the path of what is wrong, what was found and what was expected.
"""

import difflib
from collections.abc import Mapping
from copy import deepcopy
from importlib import resources
from typing import Any

from pydantic import ValidationError

from gonogo.contract.errors import NotFound, Problem, Rejected
from gonogo.contract.plan import Plan
from gonogo.contract.yaml_text import parse_yaml


def bundled_plan_names() -> list[str]:
    """Return the names of the plans that ship with gonogo."""
    folder = resources.files("gonogo.contract").joinpath("plans")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def bundled_plan(name: str) -> dict[str, Any]:
    """Return a bundled plan's YAML as data.

    Raises:
        NotFound: no such plan is bundled.
    """
    if name not in bundled_plan_names():
        raise NotFound(f"no plan {name!r}; there are {', '.join(bundled_plan_names())}")
    text = resources.files("gonogo.contract").joinpath("plans", f"{name}.yaml").read_text()
    found: dict[str, Any] = parse_yaml(text)
    return found


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `data` describes.

    Raises:
        Rejected: every problem with its path, what was found and what was expected.
    """
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        problems = tuple(_problem(row, data) for row in error.errors(include_url=False))
        first = problems[0]
        where = f"{first.path}: " if first.path else ""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Rejected(f"plan: {where}{first.message}{more}", problems=problems) from error


def _problem(row: Any, data: Any) -> Problem:
    """Return one pydantic error as a path (phases by name) and what was found and expected."""
    path = _named_path(row["loc"], data)
    if row["type"] == "extra_forbidden":
        known = _fields_at(row["loc"][:-1])
        close = difflib.get_close_matches(str(row["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
        return Problem(path=path, message=f"unknown key {row['loc'][-1]!r}; {hint}")
    message = row["msg"].removeprefix("Value error, ")
    if row["type"] == "missing":
        return Problem(path=path, message="missing; expected a value")
    if row["type"] == "value_error":
        return Problem(path=path, message=message)
    return Problem(path=path, message=f"found {row['input']!r}; {message}")


def _named_path(location: tuple[Any, ...], data: Any) -> str:
    parts: list[str] = []
    node = data
    for part in location:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            node = None
        label = part
        if isinstance(part, int) and isinstance(node, Mapping):
            label = node.get("name") or node.get("id") or part
        parts.append(str(label))
    return ".".join(parts)


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """Return the known keys of the model at a place in a plan."""
    model: Any = Plan
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        if field is None:
            return []
        model = _model_in(field.annotation)
    return sorted(model.model_fields) if hasattr(model, "model_fields") else []


def _model_in(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; phases and criteria go by name.

    Args:
        data: a plan as read from YAML.
        sets: dotted path → JSON value, such as `phases.smoke.steps` → 20.

    Raises:
        Rejected: a path that leads through something that is not there.
    """
    result = deepcopy(dict(data))
    problems = []
    for path, value in sets.items():
        problem = _set_at(result, path, value)
        if problem:
            problems.append(Problem(path=path, message=problem))
    if problems:
        raise Rejected(f"set {problems[0].path}: {problems[0].message}", problems=tuple(problems))
    return result


def _set_at(root: dict[str, Any], path: str, value: Any) -> str | None:
    parts = path.split(".")
    node: Any = root
    for part in parts[:-1]:
        if isinstance(node, list):
            named = {row.get("name", row.get("id")): row for row in node if isinstance(row, dict)}
            if part not in named:
                return f"found {part!r}; expected one of {', '.join(map(str, named))}"
            node = named[part]
        elif isinstance(node, dict):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        else:
            return f"{part!r} lies inside a value that has no parts"
    if not isinstance(node, dict):
        return "expected a path to a key"
    node[parts[-1]] = value
    return None
