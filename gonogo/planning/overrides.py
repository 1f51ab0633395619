"""Dotted paths into a plan, and what `--set a.b=value` changes there.

    phases.smoke.gate.throughput.pass_above    confirm.variants.0.env.NSA_SDPA_NO_FLASH

Phases and criteria go by name, rows without a name by their position. A name that holds dots is
found too.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import MOST_PROBLEMS, Problem, hint
from gonogo.contract.yaml_text import Document, Location


def named_path(location: Sequence[str | int], data: Any) -> str:
    """Return the path of a location, each row of a list by its name where it has one."""
    parts: list[str] = []
    node = data
    for part in location:
        node = _child(node, part)
        named = isinstance(part, int) and isinstance(node, Mapping)
        parts.append(str((_row_name(node) if named else None) or part))
    return ".".join(parts)


def locate(data: Any, path: str) -> tuple[Location, tuple[str, ...]]:
    """Return the location of the longest part of a path that exists, and the missing parts."""
    parts = path.split(".") if path else []
    found: list[str | int] = []
    node, index = data, 0
    while index < len(parts):
        for end in range(len(parts), index, -1):
            step = _step(node, ".".join(parts[index:end]))
            if step is not None:
                node, index = _child(node, step), end
                found.append(step)
                break
        else:
            break
    return tuple(found), tuple(parts[index:])


def line_of(document: Document, path: str) -> int | None:
    """Return the line of a path, or of the nearest thing around it; None where nothing is known."""
    location, _ = locate(document.data, path)
    for end in range(len(location), 0, -1):
        line = document.lines.get(location[:end])
        if line is not None:
            return line
    return None


def known_steps(node: Any) -> list[str]:
    """Return the next parts of a path below a value: keys, or names of rows."""
    if isinstance(node, Mapping):
        return [str(key) for key in node]
    if isinstance(node, list):
        return [str(_row_name(row) or index) for index, row in enumerate(node)]
    return []


def _step(node: Any, part: str) -> str | int | None:
    if isinstance(node, Mapping):
        return part if part in node else None
    if not isinstance(node, list):
        return None
    for index, row in enumerate(node):
        if isinstance(row, Mapping) and _row_name(row) == part:
            return index
    index = int(part) if part.isdecimal() and len(part) < 6 else len(node)
    return index if index < len(node) else None


def _row_name(row: Any) -> str | None:
    name = row.get("name") or row.get("id") if isinstance(row, Mapping) else None
    return name if isinstance(name, str) else None


def _child(node: Any, step: str | int) -> Any:
    try:
        return node[step]
    except (KeyError, IndexError, TypeError):
        return None


def overridden(
    data: Mapping[str, Any], sets: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the plan data with the overrides that lead somewhere, and what is wrong with others.

    Mappings that are not there yet are made on the way. A variable of `workload.env` that is set to
    null is taken away; elsewhere the null itself says so.

    Args:
        data: a plan as read from YAML.
        sets: dotted path → JSON value, such as `phases.smoke.steps` → 20.
    """
    result: dict[str, Any] = plain_copy(data)
    messages = ((path, _set_at(result, path, plain_copy(value))) for path, value in sets.items())
    wrong = (Problem(path=path, message=text) for path, text in messages if text is not None)
    return result, list(islice(wrong, MOST_PROBLEMS + 1))


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
