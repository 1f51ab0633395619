"""Which workloads are known, and what fits them? The exported schemas beside this file say it.

Besides JSON Schema they hold relations: `left` is a multiple of, at least, equal to or about
(within 2 %) a sum of products of whole numbers and of values by their dotted paths. A relation
about something that is not there holds.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field

from gonogo.contract.canonical import plain_copy
from gonogo.contract.wire import Submitted
from gonogo.planning.workloads.json_schema import Path, Violation, violations

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
