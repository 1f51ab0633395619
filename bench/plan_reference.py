"""The page docs/reference/plan.md, made from the models of a plan.

The meaning of a key is the docstring under its field. Type, default and limits are those that
pydantic enforces. The text around the tables is `pages/plan.md`.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from gonogo.contract.plan import Plan
from gonogo.judge.gate.added_criteria import ceiling_text

_FRAME = Path(__file__).parent / "pages/plan.md"
_PLACE = "<!-- keys -->\n"
_WATCH = "watch."

_NAMED_ELSEWHERE = {
    "Metric": "[metric](metrics.md)",
    "Detector": "[detector](../detectors.md)",
}
"""Enumerations that have a page of their own."""

_WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "boolean",
    "object": "map",
    "null": "`null`",
}
_LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a plan."""

    path: str
    field: FieldInfo
    meaning: str
    section: type[BaseModel] | None = None
    """The model of what stands under it, where that is a section."""
    below: str = ""
    """Path under which the keys of that section stand."""


def page() -> str:
    """Return docs/reference/plan.md."""
    return _FRAME.read_text().replace(_PLACE, "\n".join(_tables(Plan, "", {})))


def keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    """Yield the keys that stand directly under `prefix`, in the order of the model."""
    meanings = field_docs(model)
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        section = _model_in(field.annotation)
        below = "" if section is None else _below(path, field.annotation, section)
        meaning = meanings.get(name) or ("" if section is None else _sentence(section))
        yield Key(path=path, field=field, meaning=meaning, section=section, below=below)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each field of a model and of those that it is made from."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, said in zip(tree.body, tree.body[1:], strict=False):
            match field, said:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    found[name] = " ".join(text.split())
    return found


def _tables(
    model: type[BaseModel], prefix: str, shown: dict[type[BaseModel], str]
) -> Iterator[str]:
    """Yield the table of a section, then those of its sections that are not `shown` yet."""
    if model in shown:
        same = shown[model].removesuffix(".")
        yield f"`{prefix.removesuffix('.')}` has the keys of `{same}`.\n"
        return
    shown[model] = prefix
    rows = [key for key in keys(model, prefix) if key.section is None]
    sections = [key for key in keys(model, prefix) if key.section is not None]
    if prefix == _WATCH:
        rows = [row for key in sections for row in _leaves(key)]
        sections = []
    title = f"`{prefix.removesuffix('.')}`" if prefix else "The plan"
    yield f"## {title}\n\n{_sentence(model)}\n"
    if rows:
        head = ["key", "is", "default", "meaning"]
        if prefix == _WATCH:
            head.insert(3, "ceiling")
        yield _line(head) + _line(["-"] * len(head)) + "".join(map(_row, rows))
    for key in sections:
        assert key.section is not None
        yield from _tables(key.section, key.below, shown)


def _leaves(key: Key) -> Iterator[Key]:
    """Yield the keys below a section, at any depth."""
    assert key.section is not None
    for row in keys(key.section, key.below):
        if row.section is None:
            yield row
        else:
            yield from _leaves(row)


def _sentence(model: type[BaseModel]) -> str:
    """Return the first paragraph of a model's docstring."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def _row(key: Key) -> str:
    schema = _schema_of(key.field)
    kind = ", ".join([_words(schema), *_limits(schema)])
    cells = [f"`{key.path}`", kind, _default(key), key.meaning]
    if key.path.startswith(_WATCH):
        cells.insert(3, ceiling_text(key.path.removeprefix(_WATCH)))
    return _line(cells)


def _line(cells: list[str]) -> str:
    return f"|{'|'.join(cells)}|\n"


def _schema_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return the JSON Schema of one field."""
    kind: Any = field.annotation
    if field.metadata:
        kind = Annotated[kind, *field.metadata]
    return TypeAdapter(kind).json_schema()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation is of, holds a list of, or maps names to."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _below(path: str, annotation: Any, section: type[BaseModel]) -> str:
    """Return the path under which the keys of a section stand."""
    if get_origin(annotation) is dict:
        return f"{path}.DIAGNOSIS."
    if get_origin(annotation) is list:
        named = [name for name in ("name", "id") if name in section.model_fields]
        return f"{path}.{named[0].upper() if named else 'N'}."
    return f"{path}."


def _words(schema: Mapping[str, Any]) -> str:
    """Return what a JSON Schema describes, in a person's words."""
    if "$ref" in schema:
        return _named(schema["$ref"].rpartition("/")[2], schema)
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        parts = [_words(_with_defs(part, schema)) for part in schema["anyOf"]]
        return " or ".join(dict.fromkeys(parts))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(_WORDS[name] for name in kind)
    if kind == "array":
        return f"list of {_words(_with_defs(schema['items'], schema))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        value = _words(_with_defs(schema["additionalProperties"], schema))
        return f"map to {value}"
    return _WORDS.get(str(kind), "anything")


def _named(name: str, schema: Mapping[str, Any]) -> str:
    if name in _NAMED_ELSEWHERE:
        return _NAMED_ELSEWHERE[name]
    found = schema["$defs"].get(name, {})
    return _words(_with_defs(found, schema)) if name != "JsonValue" else "anything"


def _with_defs(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**part, "$defs": whole.get("$defs", {})}


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what pydantic asks of a value, besides its type."""
    for name, words in _LIMITS.items():
        if name in schema:
            yield f"{words}{_number(schema[name])}"
    if "pattern" in schema:
        yield f"`{schema['pattern']}`"
    if schema.get("minItems") or schema.get("minLength"):
        yield "not empty"
    for part in schema.get("anyOf", ()):
        yield from _limits(part)
    if isinstance(schema.get("items"), dict):
        yield from _limits(schema["items"])


def _number(value: float) -> str:
    exponent = int(value).bit_length() - 1
    return f"2^{exponent}" if value == 2**exponent and value >= 2**40 else f"{value:.15g}"


def _default(key: Key) -> str:
    field = key.field
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, float):
        return f"`{value:g}`"
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`"
