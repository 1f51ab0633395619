"""Base models of everything that crosses a process boundary.

A submission forbids unknown fields; a record ignores them. Non-finite numbers are strings.
"""

import re
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from ulid import ULID

from gonogo.contract.canonical import wire_value

MAX_DEPTH = 64

NON_FINITE = ("NaN", "Infinity", "-Infinity")

Number = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]})
]
"""A float that may be non-finite: a string on the wire."""

Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339 in UTC."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]

Text = Annotated[str, Field(max_length=4000)]

Labels = Annotated[
    dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=500)]],
    Field(max_length=64),
]


class Submitted(BaseModel):
    """Base of submissions: unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="strings", serialize_by_alias=True
    )


class Document(Submitted):
    """Base of a submission with free documents: of bounded depth, each text with valid UTF-8."""

    @model_validator(mode="before")
    @classmethod
    def _can_be_kept(cls, value: Any) -> Any:
        _require_storable(value, 0)
        return value


def _require_storable(value: Any, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("a text holds half a surrogate pair") from error
    elif isinstance(value, dict | list):
        for inner in chain(value, value.values()) if isinstance(value, dict) else value:
            _require_storable(inner, depth + 1)


class Recorded(BaseModel):
    """Base of records: unknown fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, ser_json_inf_nan="strings", serialize_by_alias=True
    )

    def wire(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = wire_value(self.model_dump(mode="json"))
        return found


_ID = re.compile(r"(exp|run|dec|evt|alt|cmp|key|whk)_[0-9A-HJKMNP-TV-Z]{26}")


class Kind(StrEnum):
    """Prefixes of identifiers."""

    EXPERIMENT = "exp"
    RUN = "run"
    DECISION = "dec"
    EVENT = "evt"
    ALERT = "alt"
    CAMPAIGN = "cmp"
    KEY = "key"
    WEBHOOK = "whk"


def new_id(kind: Kind) -> str:
    """Return a fresh identifier, such as `run_01K…`."""
    return f"{kind.value}_{ULID()}"


def is_id(text: str, kind: Kind | None = None) -> bool:
    """Say whether `text` is an identifier (of `kind`)."""
    match = _ID.fullmatch(text)
    return match is not None and (kind is None or match.group(1) == kind.value)


SHORT_LENGTH = 8
_IN_TEXT = re.compile(rf"(?<![\w/]){_ID.pattern}(?![\w/])")


def short_id(text: str) -> str:
    """Return the short form of an identifier: `run_7Q2M9XKD`."""
    return f"{text[:4]}{text[-SHORT_LENGTH:]}" if is_id(text) else text


def shorten_ids(text: str) -> str:
    """Return a text with short identifiers; those in paths and addresses stay whole."""
    return _IN_TEXT.sub(lambda found: short_id(found[0]), text)
