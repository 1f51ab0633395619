"""How is a place in a plan called? By a dotted path on which phases and criteria go by name.

    phases.smoke.gate.throughput.pass_above    confirm.variants.0.env.NSA_SDPA_NO_FLASH

Rows without a name go by their position, and a name that holds dots is found too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
    """Return the location of the longest part of a path that is there, and the parts that are not.

    Args:
        data: the plan as data.
        path: dotted path.
    """
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
    """Return what a path may go on with from a value: keys, or names of rows."""
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
