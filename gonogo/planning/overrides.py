"""What does `--set a.b=value` change? The plan's data, before anything else reads it."""

from collections.abc import Mapping
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import MOST_PROBLEMS, Problem, hint
from gonogo.contract.wire import MAX_DEPTH
from gonogo.planning.paths import known_steps, locate
from gonogo.planning.problems import refuse, rejected

_SHOWN_CHARS = 60
"""Of a path that is refused for its length: its beginning says which it is."""
_TOO_DEEP = f"more than {MAX_DEPTH} levels"


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; phases and criteria go by name.

    Mappings that are not there yet are made on the way. A variable of `workload.env` that is set to
    null is taken away; elsewhere the null itself says so.

    Args:
        data: a plan as read from YAML.
        sets: dotted path → JSON value, such as `phases.smoke.steps` → 20.

    Raises:
        Rejected: paths that lead through something that is not there; more than `MAX_DEPTH` levels
            of anything, which nobody writes and which would exhaust the stack.
    """
    result, wrong = overridden(data, sets)
    refuse(wrong, "set ")
    return result


def overridden(
    data: Mapping[str, Any], sets: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the plan data with the overrides that lead somewhere, and what is wrong with others.

    So a wrong path hides nothing else that is wrong.

    Raises:
        Rejected: more than `MAX_DEPTH` levels of anything in the plan or in a value.
    """
    _require_shallow([data, sets])
    result: dict[str, Any] = plain_copy(data)
    wrong: list[Problem] = []
    for path, value in sets.items():
        problem = _problem_of_setting(result, path, value)
        if problem is not None:
            wrong.append(problem)
        if len(wrong) > MOST_PROBLEMS:
            break
    _require_shallow([result])
    return result, wrong


def _problem_of_setting(root: dict[str, Any], path: str, value: Any) -> Problem | None:
    if path.count(".") >= MAX_DEPTH:  # before it is looked for, which costs its square
        shown = path[:_SHOWN_CHARS]
        return Problem(path=shown.rpartition(".")[0] or shown, message=_TOO_DEEP)
    message = _set_at(root, path, plain_copy(value))
    return None if message is None else Problem(path=path, message=message)


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


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for row in level
            if isinstance(row, Mapping | list)
            for inner in (row.values() if isinstance(row, Mapping) else row)
        ]
        if not level:
            return
    raise rejected([Problem(path="", message=_TOO_DEEP)])
