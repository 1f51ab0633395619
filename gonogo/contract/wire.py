"""Base models of everything that crosses a process boundary.

A submission forbids unknown fields; a record ignores them. Non-finite numbers are strings.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

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
        level, depth = [value], 0
        while level:
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            level = [
                inner
                for outer in level
                if isinstance(outer, dict | list)
                for inner in (_parts(outer) if isinstance(outer, dict) else outer)
            ]
            if not all(map(_has_bytes, level)):
                raise ValueError("a text holds half a surrogate pair")
        return value


def _parts(value: Mapping[Any, Any]) -> Iterator[Any]:
    return chain(value, value.values())


def _has_bytes(value: Any) -> bool:
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Recorded(BaseModel):
    """Base of records: unknown fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, ser_json_inf_nan="strings", serialize_by_alias=True
    )

    def wire(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = wire_value(self.model_dump(mode="json"))
        return found
