"""Read a mapping into a dataclass, and describe the same as JSON Schema.

One reading of the annotations serves both. Known are int, float, bool, str, `Literal`, unions of
these, `None`, nested dataclasses, and `Annotated[…, Bounds(…)]` around a number or a text.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nsa.errors import BadConfig

_LARGEST_INT = 2**53 - 1
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which values of a type are meant; None = no such bound.

    `pattern` is a regular expression of the whole text, in words that ECMA 262 and Python share.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    multiple_of: int | None = None
    pattern: str | None = None
    words: str | None = None
    """What is expected, where the bounds themselves say too little."""

    def hold(self, value: Any) -> bool:
        """Whether a value of the right type lies within."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, value) is not None
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (self.multiple_of is None or value % self.multiple_of == 0)
        )

    def keywords(self) -> dict[str, Any]:
        """The keywords of JSON Schema that say the same."""
        found = {
            "minimum": self.at_least,
            "exclusiveMinimum": self.above,
            "maximum": self.at_most,
            "exclusiveMaximum": self.below,
            "multipleOf": self.multiple_of,
            "pattern": None if self.pattern is None else f"^(?:{self.pattern})$(?!\\n)",
            "title": self.words,
        }
        return {name: value for name, value in found.items() if value is not None}

    def text(self) -> str:
        """What is expected, in words."""
        if self.words is not None:
            return self.words
        found = {
            "at least": self.at_least,
            "more than": self.above,
            "at most": self.at_most,
            "less than": self.below,
            "a multiple of": self.multiple_of,
        }
        said = [f"{word} {value:g}" for word, value in found.items() if value is not None]
        return " and ".join(said)


def read(cls: Any, mapping: Any, path: str) -> Any:
    """The dataclass that a mapping describes; BadConfig at the first key that does not fit."""
    if not isinstance(mapping, Mapping):
        raise BadConfig(f"{path}: expected a mapping, found {mapping!r}")
    hints = _hints(cls)
    unknown = sorted(str(key) for key in set(mapping) - set(hints))
    if unknown:
        raise BadConfig(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(hints))}")
    missing = [name for name in hints if name not in mapping and name not in optional_fields(cls)]
    if missing:
        raise BadConfig(f"{path}: missing key {missing[0]!r}")
    return cls(
        **{
            name: _value(_stated(cls, name, hint), mapping[name], f"{path}.{name}")
            for name, hint in hints.items()
            if name in mapping
        }
    )


def schema_of(cls: Any) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `read` takes for a dataclass."""
    optional = optional_fields(cls)
    hints = _hints(cls)
    return {
        "type": "object",
        "description": (cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip(),
        "properties": {name: _keywords(_stated(cls, name, hint)) for name, hint in hints.items()},
        "required": [name for name in hints if name not in optional],
        "additionalProperties": False,
    }


@functools.cache
def optional_fields(cls: Any) -> frozenset[str]:
    """The names that a mapping may leave out."""
    fields = dataclasses.fields(cls)
    return frozenset(field.name for field in fields if field.default is not dataclasses.MISSING)


def _stated(cls: Any, name: str, hint: Any) -> Any:
    """The hint of what is there: `None` stands for left out, and is no value that may be given."""
    if name not in optional_fields(cls):
        return hint
    kept = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return kept[0] if len(kept) == 1 else hint


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _section(hint: Any) -> Any:
    """The dataclass of a section; None of other hints."""
    return hint if dataclasses.is_dataclass(hint) else None


def _value(hint: Any, value: Any, path: str) -> Any:
    section = _section(hint)
    if section is not None:
        return read(section, value, path)
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        raise BadConfig(f"{path}: {value} is more than JSON holds exactly ({_LARGEST_INT})")
    bounds = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, bounds = typing.get_args(hint)[:2]
    if not _fits(hint, value):
        raise BadConfig(f"{path}: expected {_expected(hint)}, found {value!r}")
    if bounds is not None and not bounds.hold(value):
        raise BadConfig(f"{path}: expected {bounds.text()}, found {value!r}")
    return float(value) if hint is float else value


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of a type; a whole number is a number too, true is neither."""
    choices = _choices(hint)
    if choices is not None:
        return any(type(value) is type(choice) and value == choice for choice in choices)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is hint


def _choices(hint: Any) -> list[Any] | None:
    """Every value of a hint that has finitely many: literals, bool, None and unions of these."""
    if hint is types.NoneType:
        return [None]
    if hint is bool:
        return [True, False]
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        parts = [_choices(part) for part in typing.get_args(hint)]
        return [choice for part in parts for choice in part or []]
    return None


def _expected(hint: Any) -> str:
    choices = _choices(hint)
    if choices is None or hint is bool:
        return _WORDS[hint]
    words = {True: "true", False: "false", None: "null"}
    return " or ".join(words[row] if type(row) is not str else row for row in choices)


def _keywords(hint: Any) -> dict[str, Any]:
    section = _section(hint)
    if section is not None:
        return schema_of(section)
    bounds: dict[str, Any] = {}
    if typing.get_origin(hint) is typing.Annotated:
        hint, found = typing.get_args(hint)[:2]
        bounds = found.keywords()
    if hint is int:
        limits = {"minimum": -_LARGEST_INT, "maximum": _LARGEST_INT}
        return {"type": "integer", **limits, **bounds}
    if hint is float:
        return {"type": "number", **bounds}
    if hint is str:
        return {"type": "string", **bounds}
    return {"type": "boolean"} if hint is bool else {"enum": _choices(hint)}
