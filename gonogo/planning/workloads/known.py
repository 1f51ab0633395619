"""Which workloads are known, and what fits them? The exported schemas beside this file say it.

Their keywords of JSON Schema are checked here, in words for people. A whole number is one that was
written as one: `256.0` is none. They also hold relations: `left` is a multiple of, at least, equal
to or about (within 2 %) a sum of products of whole numbers and of values by their dotted paths. A
relation about something that is not there holds.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import choices, hint
from gonogo.contract.wire import Submitted

Schema = Mapping[str, Any]
Path = tuple[str, ...]

_WORDS = {
    "object": "a mapping",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_TYPES: Mapping[str, Any] = {
    "object": dict,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
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
    if kind is None or isinstance(value, bool):
        return kind in (None, "boolean")
    return isinstance(value, _TYPES[kind]) and (kind != "number" or math.isfinite(value))


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


TOLERANCE = 0.02


class Relation(Submitted):
    """One relation; it counts where every value in `when` is as it says."""

    left: str
    relation: Literal["multiple_of", "at_least", "equal_to", "about"]
    terms: list[list[int | str]]
    text: str
    when: dict[str, Any] = Field(default_factory=dict)

    def violation(self, values: Mapping[str, Any]) -> str | None:
        """Return what is wrong among values of the right types; None where it holds."""
        if any(_at(values, path) != value for path, value in self.when.items()):
            return None
        left, right = _at(values, self.left), self._right(values)
        if left is None or right is None or self._holds(left, right):
            return None
        counted = f", which is {right}" if self.relation == "about" else ""
        return f"found {left!r}; {self.text}{counted}"

    def _right(self, values: Mapping[str, Any]) -> Any:
        terms = [
            [_at(values, factor) if isinstance(factor, str) else factor for factor in term]
            for term in self.terms
        ]
        if any(factor is None for term in terms for factor in term):
            return None
        if isinstance(terms[0][0], str):
            return terms[0][0]
        return sum(math.prod(term) for term in terms)

    def _holds(self, left: Any, right: Any) -> bool:
        if isinstance(right, str):
            return bool(left == right)
        number, wanted = float(left), float(right)
        if self.relation == "multiple_of":
            return number % wanted == 0
        if self.relation == "at_least":
            return number >= wanted
        if self.relation == "about":
            return abs(number / wanted - 1) <= TOLERANCE
        return number == wanted


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSchema:
    """What a workload takes: `{train: configuration, env: {NAME: text}, world_size}`."""

    document: Mapping[str, Any]
    relations: tuple[Relation, ...]

    def violations(
        self, train: Mapping[str, Any], env: Mapping[str, str], world_size: int
    ) -> Iterator[Violation]:
        """Yield what the workload would refuse."""
        values = {"train": train, "env": env, "world_size": world_size}
        wrong = False
        for row in violations(self.document, values):
            wrong = True
            yield row
        for relation in () if wrong else self.relations:
            message = relation.violation(values)
            if message is not None:
                yield Violation(path=tuple(relation.left.split(".")), message=message)

    def section_default(self, path: Path) -> dict[str, Any] | None:
        """Return what the absence of a section of the configuration amounts to, as a copy."""
        found: Any = self.document["properties"]["train"]
        for part in path:
            found = found.get("properties", {}).get(part, {})
        default = found.get("default")
        return plain_copy(default) if isinstance(default, Mapping) else None


def read_schema(document: Mapping[str, Any]) -> WorkloadSchema:
    """Return an exported schema, ready to check by."""
    schema = {name: value for name, value in document.items() if name != "relations"}
    relations = tuple(Relation.model_validate(row) for row in document.get("relations", []))
    return WorkloadSchema(document=schema, relations=relations)


@cache
def schema_documents() -> dict[str, dict[str, Any]]:
    """Return the exported schemas, by the entry point of their workload."""
    folder = resources.files("gonogo.planning.workloads")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".json")]
    return {entry.name.removesuffix(".json"): json.loads(entry.read_text()) for entry in files}


@cache
def workload_schema(entry: str | None) -> WorkloadSchema | None:
    """Return the schema of the workload that an entry point starts; None of a foreign one."""
    document = schema_documents().get(entry or "")
    return None if document is None else read_schema(document)
