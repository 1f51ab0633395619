"""`.metrics.json`, which the watcher writes every second for the worker's Prometheus exporter.

Schema (`Snapshot`; every key may be missing):

    {"v": 1, "tick": 1e9,              Unix seconds of the watcher's last tick
     "backlog": 0,                     heartbeat lines not acknowledged by the control plane
     "ranks": {"0": {"step": 7, "last": 1e9, "loss": 2.5}},   `last`: Unix s of the last line
     "armed": {"stall": true},         detector → whether it could fire
     "near": {"stall": {"value": 2.0, "limit": 60.0, "unit": "s"}},   see `contract.near`
     "findings": {"stall/halt": 1},    detector/severity → count
     "step_s": {"sum": 8.1, "counts": [0, 3, …]}}   histogram of steps (`pace`)
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.finding import Near
from gonogo.files import create_plain, read_small
from gonogo.supervise.watcher.pace import StepTimes

METRICS_NAME = ".metrics.json"
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""No series is larger."""


class RankMetrics(BaseModel):
    """One rank."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Whole | None = None
    last: float | None = None
    loss: float | None = None


class Snapshot(BaseModel):
    """.metrics.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tick: float | None = None
    backlog: Whole = 0
    ranks: dict[str, RankMetrics] = {}
    armed: dict[str, bool] = {}
    near: dict[str, Near] = {}
    findings: dict[str, Whole] = {}
    step_s: StepTimes | None = None


def save_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Replace the file at `path`; it is not synced.

    Raises:
        OSError: the disk does not take it.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with create_plain(temporary) as stream:
        stream.write(json.dumps(wire_value({"v": 1, **metrics}), allow_nan=False).encode())
    temporary.replace(path)


def load_metrics(run_dir: Path) -> Snapshot | None:
    """Return the content of `.metrics.json`; None if it cannot be read."""
    try:
        return Snapshot.model_validate_json(read_small(run_dir / METRICS_NAME))
    except (OSError, ValidationError):
        return None
