"""The JSON Schemas that are served and shipped.

`python -m gonogo.contract.schemas DIR` writes them; a test compares them with the models.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gonogo.contract.decision import Decision
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order, Rules
from gonogo.contract.plan import Plan
from gonogo.contract.records import ExitRecord, NodeExit, NodeLine, Tick

SCHEMAS: dict[str, type[BaseModel]] = {
    "plan": Plan,
    "order": Order,
    "heartbeat": Heartbeat,
    "finding": Finding,
    "decision": Decision,
    "exit": ExitRecord,
    "facts": Facts,
    "rules": Rules,
    "tick": Tick,
    "device": DeviceSample,
    "node_line": NodeLine,
    "node_exit": NodeExit,
}


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a document."""
    found = SCHEMAS[name].model_json_schema(mode="validation", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def save_schemas(folder: Path) -> None:
    """Write every schema into `folder` as NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        text = json.dumps(schema(name), indent=1, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text)


if __name__ == "__main__":
    save_schemas(Path(sys.argv[1]))
