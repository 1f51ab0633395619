"""Load plans and training configurations; keep what an experiment freezes of them.

`parse_plan` makes a plan of data and names every problem with its path, what was found and what
was expected. `resolve` checks what a plan must hold beyond its shape.
"""

import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError

import gonogo
from gonogo.contract.errors import MOST_PROBLEMS, NotFound, Problem, Rejected, choices, hint
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.wire import Recorded, Submitted
from gonogo.contract.workload import Workload
from gonogo.contract.yaml_text import Document, Location, parse_yaml
from gonogo.judge.facts.metrics import metric_names, metric_row


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
    """
    result: dict[str, Any] = deepcopy(dict(data))
    messages = ((path, _set_at(result, path, deepcopy(value))) for path, value in sets.items())
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


_PATH = re.compile(r"(?P<path>[a-z][\w.-]*): (?P<message>.*)", re.DOTALL)
_QUOTED = re.compile(r"'([^']*)'")


def rejected(problems: Iterable[Problem], what: str = "plan: ") -> Rejected:
    """Return the error that carries problems; its sentence is the first of them.

    No more is asked for than `MOST_PROBLEMS`: what each of a hundred thousand names may have been
    meant for takes seconds to find, and nobody reads it.
    """
    found = tuple(islice(problems, MOST_PROBLEMS + 1))
    told, first = found[:MOST_PROBLEMS], found[0]
    where = f"{first.path}: " if first.path else ""
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    if len(found) > len(told):
        more = f" (and more than {len(told) - 1} more)"
    return Rejected(f"{what}{where}{first.message}{more}", problems=told)


def refuse(problems: Iterable[Problem], what: str = "plan: ") -> None:
    """Pass where there is no problem."""
    rows = iter(problems)
    for first in rows:
        raise rejected(chain([first], rows), what)


def problems_of(error: ValidationError, data: Any) -> Iterator[Problem]:
    """Yield what pydantic found wrong with a plan's data."""
    return (row for found in error.errors(include_url=False) for row in _problems(found, data))


def _problems(row: Any, data: Any) -> Iterator[Problem]:
    location = tuple(part for part in row["loc"] if part != "[key]")
    path = named_path(location, data)
    if row["type"] != "value_error":
        yield Problem(path=path, message=_message(row, location))
        return
    for text in row["msg"].removeprefix("Value error, ").split("\n"):
        said = _PATH.fullmatch(text) if not location else None
        if said is not None:  # a sentence about the whole plan names its place itself
            yield Problem(path=said["path"], message=said["message"])
        else:
            yield Problem(path=path, message=_with_value(text, row["input"]))


def _message(row: Any, location: tuple[str | int, ...]) -> str:
    if row["type"] == "extra_forbidden":
        name = str(location[-1])
        inner = [] if location[:-1] else _inner_places(name)
        meant = f"did you mean {' or '.join(inner)}?" if inner else None
        return f"unknown key {name!r}; {meant or hint(name, _fields_at(location[:-1]))}"
    if row["type"] == "missing":
        return "missing; expected a value"
    if row["type"] in ("literal_error", "enum") and isinstance(row["input"], str):
        known = _QUOTED.findall(row["ctx"]["expected"])
        return f"found {row['input']!r}; {choices(row['input'], known)}"
    return f"found {_short(row['input'])}; {row['msg'][:1].lower()}{row['msg'][1:]}"


def _with_value(text: str, value: Any) -> str:
    """Return a sentence with what was found, where that is one value and the sentence lacks it."""
    if text.startswith(("found ", "expected an entry")) or isinstance(value, Mapping | list):
        return text
    return text if isinstance(value, str) and value in text else f"found {_short(value)}; {text}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _inner_places(name: str) -> list[str]:
    """Return where in a plan a key stands that somebody wrote at its top, as `--set env.A=1`."""
    places: dict[str, type[BaseModel]] = {"workload": Workload, "phases.NAME": Phase}
    return [f"{place}.{name}" for place, model in places.items() if name in model.model_fields]


def _fields_at(location: tuple[str | int, ...]) -> list[str]:
    annotation: Any = Plan
    for part in location:
        annotation = _inner(_model_in(annotation), part)
    model = _model_in(annotation)
    return sorted(model.model_fields) if _is_model(model) else []


def _inner(annotation: Any, part: str | int) -> Any:
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return None if field is None else field.annotation
    return get_args(annotation)[-1] if get_args(annotation) else None


def _model_in(annotation: Any) -> Any:
    """Return the model or collection that an annotation is about."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _model_in(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return next((found for part in parts if (found := _model_in(part)) is not None), None)
    return annotation if _is_model(annotation) or origin in (list, dict) else None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@cache
def _bundled() -> dict[str, str]:
    folder = resources.files("gonogo.contract").joinpath("plans")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    found = {entry.name.removesuffix(".yaml"): entry.read_text() for entry in files}
    return {name: found[name] for name in sorted(found)}


@cache
def _parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(_bundled()[name])
    return found


def bundled_plan_names() -> list[str]:
    """Return the names of the experiments' plans that ship with gonogo."""
    return [name for name in _bundled() if "campaign" not in _parsed(name)]


def bundled_campaign_names() -> list[str]:
    """Return the names of the campaigns that ship with gonogo."""
    return [name for name in _bundled() if "campaign" in _parsed(name)]


def bundled_plan(name: str) -> dict[str, Any]:
    """Return a bundled plan's YAML as data, yours to change; it is read once."""
    if name not in _bundled():
        known = [*bundled_plan_names(), *bundled_campaign_names()]
        raise NotFound(f"no plan {name!r}; there are {', '.join(known)}")
    found: dict[str, Any] = deepcopy(_parsed(name))
    return found


def with_overrides(data: Mapping[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan data with dotted overrides applied; refuse paths that lead nowhere."""
    result, wrong = overridden(data, sets)
    refuse(wrong, "set ")
    return result


def parse_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `data` describes."""
    plan = parse_frozen_plan(data)
    refuse(unknown_metrics(plan))
    return plan


def unknown_metrics(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each criterion whose metric nothing here knows."""
    for phase in plan.phases:
        for row in phase.gate:
            if metric_row(row.metric) is None:
                yield Problem(
                    path=f"phases.{phase.name}.gate.{row.id}.metric",
                    message=f"found {row.metric!r}; {hint(str(row.metric), metric_names())}",
                )


def parse_frozen_plan(data: Mapping[str, Any]) -> Plan:
    """Return a plan that was valid when it was submitted, whatever is installed here."""
    try:
        return Plan.model_validate(data)
    except ValidationError as error:
        raise rejected(problems_of(error, data)) from error


class ResolvedPlan(Recorded):
    """A plan with its overrides, the whole training configuration, and a fault to inject."""

    plan: dict[str, Any]
    train: dict[str, Any]
    fault: str | None = None
    _parsed: Plan | None = PrivateAttr(default=None)
    _digest: str | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, plan: Plan, train: dict[str, Any], fault: str | None) -> "ResolvedPlan":
        """Return the frozen form of a plan that is a model already."""
        found = cls(plan=plan.canonical(), train=train, fault=fault)
        found._parsed = plan
        return found

    def parsed(self) -> Plan:
        """Return the plan as a model; read once."""
        if self._parsed is None:
            self._parsed = parse_frozen_plan(self.plan)
        return self._parsed

    def plan_digest(self) -> str:
        """Return the digest of the plan; taken once."""
        if self._digest is None:
            self._digest = self.parsed().digest()
        return self._digest


def checkout_root() -> Path:
    """Return the checkout (or image) that holds the applications."""
    root = Path(gonogo.__file__).resolve().parent.parent
    if not (root / "nsa" / "configs").is_dir():
        raise NotFound("this needs a checkout or the image; an installed gonogo is the core alone")
    return root


def load_train_config(name: str) -> dict[str, Any]:
    """Return the training configuration called `name` (nsa/configs/NAME.yaml), yours to change.

    An installed gonogo has copies of all, so that it judges as a checkout does.
    """
    try:
        folder: Traversable = checkout_root() / "nsa" / "configs"
    except NotFound:
        folder = resources.files("gonogo.planning").joinpath("configs")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    known = {entry.name.removesuffix(".yaml"): entry for entry in files}
    if name not in known:
        message = f"found {name!r}; {hint(name, known)}"
        problem = Problem(path="train.config", message=message)
        raise NotFound(f"train.config: {message}", problems=(problem,))
    found: dict[str, Any] = parse_yaml(known[name].read_text())
    return found


Schema = Mapping[str, Any]
Keys = tuple[str, ...]

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

    path: Keys
    message: str


def violations(schema: Schema, value: Any, path: Keys = ()) -> Iterator[Violation]:
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


def _of_object(schema: Schema, value: Mapping[str, Any], path: Keys) -> Iterator[Violation]:
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


def _of_number(schema: Schema, value: float, path: Keys) -> Iterator[Violation]:
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

    def section_default(self, path: Keys) -> dict[str, Any] | None:
        """Return what the absence of a section of the configuration amounts to, as a copy."""
        found: Any = self.document["properties"]["train"]
        for part in path:
            found = found.get("properties", {}).get(part, {})
        default = found.get("default")
        return deepcopy(dict(default)) if isinstance(default, Mapping) else None


def read_schema(document: Mapping[str, Any]) -> WorkloadSchema:
    """Return an exported schema, ready to check by."""
    schema = {name: value for name, value in document.items() if name != "relations"}
    relations = tuple(Relation.model_validate(row) for row in document.get("relations", []))
    return WorkloadSchema(document=schema, relations=relations)


@cache
def schema_documents() -> dict[str, dict[str, Any]]:
    """Return the exported schemas, by the entry point of their workload."""
    folder = resources.files("gonogo.planning") / "workloads"
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".json")]
    return {entry.name.removesuffix(".json"): json.loads(entry.read_text()) for entry in files}


@cache
def workload_schema(entry: str | None) -> WorkloadSchema | None:
    """Return the schema of the workload that an entry point starts; None of a foreign one."""
    document = schema_documents().get(entry or "")
    return None if document is None else read_schema(document)
