"""What the control plane has acknowledged of a run.

`.reported.json` is a cache: losing it repeats idempotent reports and nothing else.
"""

import logging
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gonogo.contract.agent import Command, CommandKind, TelemetryAck
from gonogo.contract.lifecycle import RunEvent
from gonogo.files import read_small
from gonogo.rundir import save_json

_FILE = ".reported.json"

_log = logging.getLogger(__name__)


class Reported(BaseModel):
    """What the control plane has acknowledged besides heartbeats and logs."""

    events: list[RunEvent] = []
    stepped_at: float | None = None
    """Stamp of the first acknowledged line of a training step."""
    findings_bytes: int = 0
    evidence: dict[str, int] = {}
    """File → its size when it was uploaded."""
    had: dict[str, int] = {}
    """Growing file → bytes that the control plane had; it has fewer after a restore."""

    def forget(self) -> None:
        """Repeat all reports: the control plane has lost some of them."""
        self.events, self.findings_bytes, self.evidence = [], 0, {}

    def save(self, run_dir: Path) -> None:
        """Write `.reported.json`; a full disk costs repetition, not the run."""
        try:
            save_json(run_dir / _FILE, {"v": 1, **self.model_dump(mode="json")})
        except OSError as error:
            _log.warning("no %s: %s", _FILE, error, extra={"action": "reported_unsaved"})


def load_reported(run_dir: Path) -> Reported:
    """Return what was acknowledged; nothing when the file is missing or torn."""
    try:
        return Reported.model_validate_json(read_small(run_dir / _FILE))
    except (OSError, ValidationError):
        return Reported()


def superseded() -> TelemetryAck:
    """Return the answer that stands for a stale token."""
    command = Command(kind=CommandKind.SUPERSEDE, reason="the run's token is stale")
    return TelemetryAck(command=command)
