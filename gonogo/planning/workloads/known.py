"""Which workloads are known, and what fits them? The schemas beside this file say it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any

from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import Corrupt
from gonogo.planning.workloads.json_schema import Path, Violation, unknown_keywords, violations
from gonogo.planning.workloads.relations import Relation


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
        found = violations(self.document, values)
        yield from _else(found, _unrelated(self.relations, values))

    def of_environment(
        self, train: Mapping[str, Any], env: Mapping[str, str]
    ) -> Iterator[Violation]:
        """Yield what the workload would refuse of an environment beside a right configuration."""
        found = violations(self.document["properties"]["env"], env, ("env",))
        about = (row for row in self.relations if row.left.startswith("env."))
        yield from _else(found, _unrelated(about, {"train": train, "env": env}))

    def section_default(self, path: Path) -> dict[str, Any] | None:
        """Return what the absence of a section of the configuration amounts to, as a copy."""
        found: Any = self.document["properties"]["train"]
        for part in path:
            found = found.get("properties", {}).get(part, {})
        default = found.get("default")
        return plain_copy(default) if isinstance(default, Mapping) else None


def _else(first: Iterator[Violation], then: Iterator[Violation]) -> Iterator[Violation]:
    """Yield what comes first, one by one; where nothing does, what would come then."""
    found = next(first, None)
    yield from then if found is None else chain([found], first)


def _unrelated(relations: Iterable[Relation], values: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield the relations that do not hold among values of which each itself is right."""
    for row in relations:
        message = row.violation(values)
        if message is not None:
            yield Violation(path=tuple(row.left.split(".")), message=message)


def read_schema(document: Mapping[str, Any]) -> WorkloadSchema:
    """Return an exported schema, ready to check by.

    Raises:
        Corrupt: it uses a keyword that is not checked here.
    """
    schema = {name: value for name, value in document.items() if name != "relations"}
    unknown = sorted(set(unknown_keywords(schema)))
    if unknown:
        raise Corrupt(f"{document.get('title')}: the schema uses {', '.join(unknown)}")
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
