"""Does a value fit a JSON Schema? The keywords that exported schemas use, in words for people.

A schema with another keyword is refused where it is read, so that none is passed over in silence.
A whole number is one that was written as one: `256.0` is none, as the trainers see it.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gonogo.contract.errors import choices, hint

Schema = Mapping[str, Any]
Path = tuple[str, ...]

_WORDS = {
    "object": "a mapping",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "exclusiveMinimum": ("more than", lambda value, bound: value > bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMaximum": ("less than", lambda value, bound: value < bound),
    "multipleOf": ("a multiple of", lambda value, bound: value % bound == 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One place of a value that does not fit."""

    path: Path
    message: str


def violations(schema: Schema, value: Any, path: Path = ()) -> Iterator[Violation]:
    """Yield what of a value does not fit, every place once."""
    if not _is_of_type(schema, value):
        yield Violation(path=path, message=f"found {_told(value)}; expected {_expected(schema)}")
        return
    if "enum" in schema and not any(_same(value, row) for row in schema["enum"]):
        yield Violation(path=path, message=f"found {_told(value)}; {_choices(schema, value)}")
        return
    if isinstance(value, dict):
        yield from _of_object(schema, value, path)
    elif isinstance(value, str):
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            expected = schema.get("title") or f"what matches {schema['pattern']}"
            yield Violation(path=path, message=f"found {_told(value)}; expected {expected}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_number(schema, value, path)
    for inner in schema.get("allOf", []):
        yield from violations(inner, value, path)
    if "not" in schema and next(violations(schema["not"], value, path), None) is None:
        yield Violation(path=path, message=schema.get("description", "found what must not be"))


def _of_object(schema: Schema, value: Mapping[str, Any], path: Path) -> Iterator[Violation]:
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield Violation(path=(*path, name), message="missing; expected a value")
    for name, inner in value.items():
        below = [row for pattern, row in patterns.items() if re.search(pattern, name)]
        if name in properties:
            below.append(properties[name])
        for row in below:
            yield from violations(row, inner, (*path, name))
        if not below and schema.get("additionalProperties") is False:
            message = f"unknown key {name!r}; {hint(name, properties)}"
            yield Violation(path=(*path, name), message=message)


def _of_number(schema: Schema, value: float, path: Path) -> Iterator[Violation]:
    for name, (words, holds) in _BOUNDS.items():
        if name in schema and not holds(value, schema[name]):
            expected = schema.get("title") or f"{words} {schema[name]}"
            yield Violation(path=path, message=f"found {_told(value)}; expected {expected}")
            return


def _is_of_type(schema: Schema, value: Any) -> bool:
    kind = schema.get("type")
    if kind is None:
        return True
    if kind == "object":
        return isinstance(value, dict)
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) if kind == "integer" else math.isfinite(value)


def _same(value: Any, choice: Any) -> bool:
    return type(value) is type(choice) and bool(value == choice)


def _expected(schema: Schema) -> str:
    return str(schema.get("title") or _WORDS[schema["type"]])


def _choices(schema: Schema, value: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    known = [row if isinstance(row, str) else words.get(row, str(row)) for row in schema["enum"]]
    return choices(value if isinstance(value, str) else "", known)


def _told(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}.get(value) if _is_word(value) else None
    text = text or repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
