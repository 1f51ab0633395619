"""A JSON Schema (2020-12) of `{train: configuration, env: {NAME: text}, world_size}`.

Made of the annotations and tables that the trainer checks by. `relations` lists `nsa.relations`;
`default` of an optional section is what its absence means.
"""

import json
from typing import Any

from nsa.config import AS_IF_ABSENT, TrainConfig
from nsa.fields import schema_of
from nsa.relations import OF_A_CONFIGURATION, OF_A_RUN
from nsa.settings import CONTRADICTIONS, NUMBERS, TOGGLES, Toggle

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema() -> dict[str, Any]:
    """The whole document."""
    train = schema_of(TrainConfig)
    for name, default in AS_IF_ABSENT.items():
        train["properties"][name]["default"] = dict(default)
    return {
        "$schema": DIALECT,
        "title": "nsa.train",
        "description": "The inputs of a run of nsa.train: configuration, environment, ranks.",
        "type": "object",
        "properties": {
            "train": train,
            "env": _environment(),
            "world_size": {"type": "integer", "minimum": 1},
        },
        "required": ["train", "env", "world_size"],
        "additionalProperties": False,
        "relations": [row.document() for row in (*OF_A_CONFIGURATION, *OF_A_RUN)],
    }


def schema_text() -> str:
    """The document as the file that others keep a copy of."""
    return json.dumps(build_schema(), indent=1, ensure_ascii=False) + "\n"


def _environment() -> dict[str, Any]:
    """Every `NSA_*` variable; other names are others' business."""
    return {
        "type": "object",
        "properties": {toggle.name: _variable(toggle) for toggle in TOGGLES.values()},
        "patternProperties": {"^(?!NSA_)": {"type": "string"}},
        "additionalProperties": False,
        "allOf": [
            {
                "description": f"{one}=1 and {other}=1 exclude each other",
                "not": {
                    "properties": {one: {"enum": ["1"]}, other: {"enum": ["1"]}},
                    "required": [one, other],
                },
            }
            for one, other in CONTRADICTIONS
        ],
    }


def _variable(toggle: Toggle) -> dict[str, Any]:
    said: dict[str, Any] = {"description": toggle.effect}
    if toggle.default:
        said["default"] = toggle.default
    if isinstance(toggle.allowed, tuple):
        return {"enum": list(toggle.allowed), **said}
    pattern = f"^(?:{NUMBERS[toggle.allowed]})$(?!\\n)"
    return {"type": "string", "title": toggle.allowed, "pattern": pattern, **said}
