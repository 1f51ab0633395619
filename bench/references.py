"""The pages of docs/ that are made from the code: `make made` writes them all.

    python -m bench.references

The text around the tables is in `pages/` beside this file. A test compares pages and code.
"""

import ast
import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer.main
from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from gonogo import contract
from gonogo.cli.app import app as command_line
from gonogo.cli.exits import EXIT_WORDS
from gonogo.contract.criterion import DEVICE_METRICS, Aggregate
from gonogo.contract.finding import IN_WEIGHTS, DoubtKind, Effect
from gonogo.contract.plan import Plan
from gonogo.contract.watch import (
    MEANING,
    SETTING,
    TABLE,
    Action,
    CanHalt,
    Cell,
    IdentityCheck,
    ProgramKind,
    Watch,
)
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts.metrics import FULL_COVERAGE, METRICS, PARTIAL_SHARE, MetricRow, Owed
from gonogo.judge.gate.added_criteria import ceiling_text
from gonogo.judge.words import WORDS
from gonogo.settings import TABLE as SETTINGS
from gonogo.watch.registry import REGISTRY, Kind
from nsa import flags
from service.app import API

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


def plan() -> str:
    """Return docs/reference/plan.md.

    The meaning of a key is its comment, or the docstring under it; pydantic enforces the rest.
    """
    return _framed("plan", keys="\n".join(_tables(Plan, "", {})))


def keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    """Yield the keys that stand directly under `prefix`, in the order of the model."""
    meanings = field_docs(model)
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        section = _model_in(field.annotation)
        below = "" if section is None else _below(path, field.annotation, section)
        meaning = meanings.get(name) or ("" if section is None else _sentence(section))
        yield Key(path=path, field=field, meaning=meaning, section=section, below=below)


@functools.cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the comment behind each field of a model and its bases, or the docstring under it."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        source = textwrap.dedent(inspect.getsource(cls))
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for field, said in zip(tree.body, [*tree.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            line = source.splitlines()[field.end_lineno - 1].encode()[field.end_col_offset :]
            match said:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    found[field.target.id] = " ".join(text.split())
                case _ if line:
                    found[field.target.id] = line.decode().lstrip(" #")
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
        yield _table(head, map(_key_row, rows))
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


def _key_row(key: Key) -> list[str]:
    schema = _schema_of(key.field)
    kind = ", ".join([_words(schema), *_limits(schema)])
    cells = [f"`{key.path}`", kind, _default(key), key.meaning]
    if key.path.startswith(_WATCH):
        cells.insert(3, ceiling_text(key.path.removeprefix(_WATCH)))
    return cells


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


_TOLD = itemgetter("name", "default", "values", "effect")
_FRAMES = Path(__file__).parent / "pages"
_DOCS = Path(__file__).parents[1] / "docs"
_PLANS = Path(contract.__file__).parent / "plans"
OWED = {
    Owed.EVERY_STEP: "every step",
    Owed.EVERY_EVAL: "every evaluation",
    Owed.ONCE: "once",
    Owed.AS_TOLD: "those reported",
}
AGGREGATES = {
    Aggregate.MIN: "The smallest sample.",
    Aggregate.MAX: "The largest sample.",
    Aggregate.MEAN: "The mean of the samples.",
    Aggregate.MEDIAN: "The median; the default.",
    Aggregate.P95: "The value that 95 % of the samples do not exceed, interpolated.",
    Aggregate.LAST: "The sample of the last step.",
    Aggregate.COUNT: "How many samples there are.",
    Aggregate.SLOPE: "Least-squares slope over the steps: by how much it rises a step; two samples"
    " at least.",
    Aggregate.ALL_FINITE: "Passes when no sample is NaN or infinite; takes no threshold.",
}


def detectors() -> str:
    """Return docs/detectors.md."""
    return _framed("detectors", patience=_patience(), detectors=_detectors())


def _patience() -> str:
    columns: dict[tuple[Cell, ...], list[str]] = {}
    for kind in ProgramKind:
        columns.setdefault(tuple(row[kind] for row in TABLE.values()), []).append(kind)
    rows = (
        (
            f"`{place}`",
            *(_cell(cells[number]) for cells in columns),
            MEANING[place],
            f"`{SETTING[place]}`" if place in SETTING else "",
        )
        for number, place in enumerate(TABLE)
    )
    heads = (", ".join(kinds) for kinds in columns.values())
    return _table(("place", *heads, "where a rank is", "setting"), rows)


def _cell(cell: Cell) -> str:
    seconds = "none" if cell.seconds is None else f"{cell.seconds:g} s"
    return seconds if cell.multiple is None else f"{seconds}, {cell.multiple:g} × {cell.of}"


def _detectors() -> str:
    head = ("", "detector", "what it sees", "action", "halts in")
    return _table(head, (_row(number, row) for number, row in enumerate(REGISTRY, start=1)))


def _row(number: int, row: Kind) -> tuple[str, ...]:
    settings = getattr(Watch(), str(row.name), None)
    halts = isinstance(settings, IdentityCheck) or (
        isinstance(settings, CanHalt) and settings.action is Action.HALT
    )
    action, where = (Action.HALT, "all plans") if halts else (Action.WARN, _asked(row.name))
    return f"D{number}", f"`{row.name}`", row.sentence, str(action), where


def _asked(detector: str) -> str:
    """Return which bundled plans ask for the detector's halt."""
    plans = {path.stem: parse_yaml(path.read_text()) for path in sorted(_PLANS.glob("*.yaml"))}
    asked = [
        name
        for name, plan in plans.items()
        if plan.get("watch", {}).get(detector, {}).get("action") == Action.HALT
    ]
    return "all bundled plans" if len(asked) == len(plans) else ", ".join(asked)


def metrics() -> str:
    """Return docs/reference/metrics.md."""
    rows = _table(
        ("metric", "unit", "what it is", "required", "aggregate", "devices"),
        (_cells(name, row) for name, row in METRICS.items()),
    )
    aggregates = _table(
        ("aggregate", "what it is", "needed"),
        (
            (f"`{name}`", text, f"{1.0 if name in FULL_COVERAGE else PARTIAL_SHARE:.0%}")
            for name, text in AGGREGATES.items()
        ),
    )
    return _framed("metrics", metrics=rows, aggregates=aggregates)


def _cells(name: str, row: MetricRow) -> tuple[str, ...]:
    own = "its own" if row.statistic is not None else ""
    devices = "yes" if name in DEVICE_METRICS else ""
    return f"`{name}`", row.unit, row.meaning, OWED[row.owed], own, devices


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["-"] * len(columns), *map(list, rows)]
    return "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


def doubts() -> str:
    """Return docs/doubts.md."""
    rows = ((f"`{kind}`", row.sentence, _effect(kind), row.advice) for kind, row in WORDS.items())
    table = _table(("kind", "sentence", "effect", "what to do"), rows)
    return _framed("doubts", doubts=table)


def _effect(kind: DoubtKind) -> str:
    effect = kind.effect
    if effect is Effect.NONE:
        return "listed"
    if effect is Effect.WEAK:
        return f"CONDITIONAL_GO (`{effect}`)"
    carried = ", inherited" if kind in IN_WEIGHTS else ""
    return f"INCONCLUSIVE (`{effect}`){carried}"


def command_line_page() -> str:
    """Return docs/reference/cli.md."""
    commands: dict[str, Any] = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]
    rows = (row for name, command in commands.items() for row in _commands(name, command))
    exits = ((str(int(code)), words) for code, words in EXIT_WORDS.items())
    return _framed(
        "cli",
        commands=_table(("command", "options", "what it does"), rows),
        exits=_table(("code", "means"), exits),
    )


def _commands(name: str, command: Any) -> Iterator[tuple[str, ...]]:
    """Yield the row of a command, or those of its subcommands."""
    for below, part in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {below}", part)
    if not hasattr(command, "commands"):
        arguments = [row.name.upper() for row in command.params if row.param_type_name != "option"]
        options = [
            max(row.opts, key=len) for row in command.params if row.param_type_name == "option"
        ]
        shown = " ".join(f"`{name}`" for name in options if name not in ("--json", "--help"))
        yield f"`{' '.join([name, *arguments])}`", shown, _first_sentence(command.help)


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a text, on one line, for a cell of a table."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", line)[0].replace("|", "\\|")


def rest() -> str:
    """Return docs/reference/rest.md."""
    described = FastAPI()
    for router in API:
        described.include_router(router)
    rows = (
        (f"`{method.upper()} {path}`", _first_sentence(call.get("description")))
        for path, calls in described.openapi()["paths"].items()
        for method, call in calls.items()
    )
    return _framed("rest", routes=_table(("route", "what it does"), rows))


def settings() -> str:
    """Return docs/reference/settings.md."""
    ours = (
        (f"`{row.env}`", f"`{row.default}`" if row.default else "–", ", ".join(row.read_by), text)
        for row in SETTINGS
        for text in [row.help.replace("|", "\\|") + (" (secret)" if row.secret else "")]
    )
    trainer = (
        (f"`{name}`", f"`{default}`" if default else "–", values, effect)
        for name, default, values, effect in map(_TOLD, flags.rows())
    )
    return _framed(
        "settings",
        settings=_table(("variable", "default", "read by", "meaning"), ours),
        trainer=_table(("variable", "default", "values", "effect"), trainer),
    )


def _framed(name: str, **tables: str) -> str:
    """Return a page of `pages/` with its tables in their places."""
    text = (_FRAMES / f"{name}.md").read_text()
    for place, table in tables.items():
        assert f"<!-- {place} -->\n" in text, (name, place)
        text = text.replace(f"<!-- {place} -->\n", table)
    return re.sub(r"^\|.*$", _compact, text, flags=re.MULTILINE)


def _compact(row: re.Match[str]) -> str:
    """Return a row of a table without the spaces around its cells."""
    return re.sub(r" *(?<!\\)\| *", "|", row[0]).replace("|---", "|-")


PAGES: dict[str, Callable[[], str]] = {
    "detectors": detectors,
    "doubts": doubts,
    "reference/cli": command_line_page,
    "reference/metrics": metrics,
    "reference/plan": plan,
    "reference/rest": rest,
    "reference/settings": settings,
}
"""Page → what makes it."""


def main() -> None:
    """Write all pages."""
    for name, make in PAGES.items():
        (_DOCS / f"{name}.md").write_text(make())


if __name__ == "__main__":
    main()
