"""Bases of everything that crosses a process boundary.

A submission forbids unknown fields (a typo is an error); a record that another process wrote
ignores them (a newer trainer must not end a run). Non-finite numbers are strings on the wire.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from gonogo.contract.canonical import wire_value

NON_FINITE = ("NaN", "Infinity", "-Infinity")

Number = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]})
]
"""A float that may be non-finite: a string on the wire."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
"""What plans, phases and criteria are called."""


class Submitted(BaseModel):
    """Base of what a person submits: unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="strings", serialize_by_alias=True
    )


class Recorded(BaseModel):
    """Base of what a process wrote: unknown fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, ser_json_inf_nan="strings", serialize_by_alias=True
    )

    def wire(self) -> dict[str, Any]:
        """Return the JSON form of this record (`canonical.wire_line` makes a line of it)."""
        found: dict[str, Any] = wire_value(self.model_dump(mode="json"))
        return found
