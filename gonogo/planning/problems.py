"""What is wrong with a plan, in words? Each error with its path, what was found, what was meant."""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gonogo.contract.errors import MOST_PROBLEMS, Problem, Rejected, choices, hint
from gonogo.contract.plan import Phase, Plan
from gonogo.contract.workload import Workload
from gonogo.planning.overrides import named_path

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
