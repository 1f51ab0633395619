"""Where do two JSON values differ first? Named by path, with both values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which two values differ."""

    path: str
    recorded: Any
    found: Any
    where: str = ""
    """Where in the files that is, when it can be said."""
    text: str = ""
    """The whole sentence, where path and values are not it."""


def first_difference(recorded: Any, found: Any, path: str = "") -> Difference | None:
    """Return the first place, keys in order, at which two JSON values differ."""
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        keys: list[Any] = sorted(recorded.keys() | found.keys(), key=str)
        pairs = [(key, recorded.get(key, ABSENT), found.get(key, ABSENT)) for key in keys]
    elif isinstance(recorded, list) and isinstance(found, list):
        size = max(len(recorded), len(found))
        pairs = [(i, _at(recorded, i), _at(found, i)) for i in range(size)]
    else:
        same = recorded == found and isinstance(recorded, bool) == isinstance(found, bool)
        return None if same else Difference(path=path, recorded=recorded, found=found)
    for key, left, right in pairs:
        difference = first_difference(left, right, f"{path}.{key}" if path else str(key))
        if difference is not None:
            return difference
    return None


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT
