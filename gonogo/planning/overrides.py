"""What does `--set a.b=value` change? The plan's data, before anything else reads it."""

from collections.abc import Mapping
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import Problem, Rejected
from gonogo.contract.near_miss import hint
from gonogo.planning.paths import known_steps, locate


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; phases and criteria go by name.

    Mappings that are not there yet are made on the way. A variable of `workload.env` that is set to
    null is taken away; elsewhere the null itself says so.

    Args:
        data: a plan as read from YAML.
        sets: dotted path → JSON value, such as `phases.smoke.steps` → 20.

    Raises:
        Rejected: paths that lead through something that is not there.
    """
    result: dict[str, Any] = plain_copy(data)
    problems = []
    for path, value in sets.items():
        problem = _set_at(result, path, plain_copy(value))
        if problem:
            problems.append(Problem(path=path, message=problem))
    if problems:
        raise Rejected(f"set {problems[0].path}: {problems[0].message}", problems=tuple(problems))
    return result


def _set_at(root: dict[str, Any], path: str, value: Any) -> str | None:
    *above, last = path.split(".")
    location, missing = locate(root, ".".join(above))
    node: Any = root
    for step in location:
        parent, node = node, node[step]
        if node is None and isinstance(parent, dict):
            parent[step] = node = {}
    for part in missing:
        if isinstance(node, list):
            return f"found {part!r}; {hint(part, known_steps(node))}"
        if not isinstance(node, dict):
            return f"{part!r} lies inside a value that has no parts"
        node[part] = node = {}
    if not isinstance(node, dict):
        return "expected a path to a key"
    if value is None and above == ["workload", "env"]:
        node.pop(last, None)
    else:
        node[last] = value
    return None
