"""Load plans and training configurations; keep what an experiment freezes of them.

`parse_plan` makes a plan of data and names every problem with its path, what was found and what
was expected. `resolve` checks what a plan must hold beyond its shape.
"""

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, PrivateAttr, ValidationError

import gonogo
from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import MOST_PROBLEMS, NotFound, Problem, Rejected, choices, hint
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.wire import Recorded
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
    found: dict[str, Any] = plain_copy(_parsed(name))
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
