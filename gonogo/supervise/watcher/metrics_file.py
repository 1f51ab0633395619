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
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.finding import Finding, Near, Severity
from gonogo.files import create_plain, read_small
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.pace import Pace, StepTimes
from gonogo.supervise.watcher.shipping import Shipping
from gonogo.watch import WatchState, armed, near

METRICS_NAME = ".metrics.json"
METRICS_EVERY_S = 1.0
SUSPECT_S = 10.0
"""How long a run is shown as suspect after a suspicion that went no further."""
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""No series is larger."""

_log = logging.getLogger("gonogo.supervise.watcher")


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


class Reporter:
    """Reports on one run for people and charts."""

    def __init__(self, run_dir: RunDir, shipping: Shipping, pace: Pace) -> None:
        self._path = run_dir.path / METRICS_NAME
        self._shipping, self._pace = shipping, pace
        self._metrics_at = self._suspect_until = float("-inf")

    def note(self, finding: Finding, now: float) -> None:
        """Log a new finding."""
        _log.warning("%s: %s", finding.severity, finding.text, extra={"action": "finding"})
        if finding.severity is Severity.SUSPECT:
            self._suspect_until = now + SUSPECT_S

    def report(self, now: float, ts: float, state: WatchState, found: Iterable[Finding]) -> None:
        """Report what is due."""
        self._shipping.suspect = now < self._suspect_until
        if now < self._metrics_at:
            return
        self._metrics_at = now + METRICS_EVERY_S
        self._shipping.near = distances = near(state, now)
        metrics = {
            "tick": ts,
            "backlog": self._shipping.backlog_lines,
            "ranks": {
                str(rank): {"step": row.step, "last": row.heard_ts, "loss": row.loss}
                for rank, row in sorted(state.streams.items())
            },
            "armed": {str(detector): on for detector, on in armed(state).items()},
            "near": {
                str(detector): row.model_dump(mode="json", exclude_defaults=True)
                for detector, row in distances.items()
            },
            "findings": Counter(f"{row.detector}/{row.severity.value}" for row in found),
            "step_s": self._pace.times.model_dump(),
        }
        try:
            save_metrics(self._path, metrics)
        except OSError as error:
            _log.warning("metrics: %s", error, extra={"action": "metrics_unwritten"})
