"""`.metrics.json`, which the watcher writes every second for the worker's Prometheus exporter."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gonogo.contract.canonical import wire_value
from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.records import ExitRecord
from gonogo.contract.worker_messages import Command
from gonogo.files import read_small, replace_file
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.journal import Pace, StepTimes
from gonogo.watch.fold import WatchState, armed, near


class Shipping:
    """Sends one run while it is watched; every call but `close` returns at once.

    This one sends nothing: there is no control plane.
    """

    suspect: bool = False  # Whether the run looks sick just now.
    near: Mapping[str, Near] | None = None
    """How near each detector is to its limit; None: nothing new."""
    backlog_lines: int = 0  # Heartbeat lines that have not been acknowledged.

    def take_command(self) -> Command | None:
        """Return what the control plane asks, once."""
        return None

    def silent_s(self) -> float:
        """Return seconds since the control plane last acknowledged anything, sleep included."""
        return 0.0

    def tell(self, finding: Finding) -> None:
        """Send a finding that the disk does not accept."""

    def close(self, record: ExitRecord | None) -> None:
        """Send the rest and the end, for a limited time; None: no end can be read."""


METRICS_NAME = ".metrics.json"
METRICS_EVERY_S = 1.0
SUSPECT_S = 10.0  # How long a run is shown as suspect after a suspicion that went no further.
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # No series is larger.

_log = logging.getLogger("gonogo.supervise.watcher")


class RankMetrics(BaseModel):
    """One rank."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: Whole | None = None
    last: float | None = None  # Unix seconds of the last line.
    loss: float | None = None


class Snapshot(BaseModel):
    """.metrics.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tick: float | None = None  # Unix seconds of the watcher's last tick.
    backlog: Whole = 0  # Heartbeat lines not acknowledged by the control plane.
    ranks: dict[str, RankMetrics] = {}
    armed: dict[str, bool] = {}  # Detector → whether it could fire.
    near: dict[str, Near] = {}
    findings: dict[str, Whole] = {}  # `detector/severity` → count.
    step_s: StepTimes | None = None


def save_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Replace the file at `path`; it is not synced."""
    content = json.dumps(wire_value({"v": 1, **metrics}), allow_nan=False).encode()
    replace_file(path, content, syncs=False)


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
