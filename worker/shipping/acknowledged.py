"""What of a run has the control plane acknowledged?

`.reported.json` is a cache: losing it repeats idempotent reports and nothing else.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gonogo.contract.lifecycle import RunEvent
from gonogo.files import read_small
from gonogo.rundir import save_json

_log = logging.getLogger(__name__)


class _Stored(BaseModel):
    events: list[RunEvent] = []
    stepped_at: float | None = None
    findings_bytes: int = 0
    evidence: dict[str, int] = {}
    had: dict[str, int] = {}


@dataclass(slots=True, kw_only=True)
class Reported:
    """What the control plane has acknowledged besides heartbeats and logs."""

    events: list[RunEvent] = field(default_factory=list)
    stepped_at: float | None = None
    """Stamp of the first line of a training step that was acknowledged."""
    findings_bytes: int = 0
    evidence: dict[str, int] = field(default_factory=dict)
    """File → its size when it was uploaded."""
    had: dict[str, int] = field(default_factory=dict)
    """Growing file → bytes that the control plane had: one that has less was restored."""

    def forget(self) -> None:
        """Take back what was acknowledged: the control plane has lost some of it, or may yet.

        One that has every growing file, as when a backup was made, says nothing of the rest.
        """
        self.events, self.findings_bytes, self.evidence = [], 0, {}

    def save(self, run_dir: Path) -> None:
        """Write `.reported.json`; a full disk costs repetition, not the run."""
        document = {
            "v": 1,
            "events": [str(event) for event in self.events],
            "stepped_at": self.stepped_at,
            "findings_bytes": self.findings_bytes,
            "evidence": self.evidence,
            "had": self.had,
        }
        try:
            save_json(run_dir / ".reported.json", document)
        except OSError as error:
            _log.warning("no .reported.json: %s", error, extra={"action": "reported_unsaved"})


def load_reported(run_dir: Path) -> Reported:
    """Return what is recorded as acknowledged; nothing when the record is missing or torn."""
    try:
        stored = _Stored.model_validate_json(read_small(run_dir / ".reported.json"))
    except (OSError, ValidationError):
        return Reported()
    return Reported(
        events=list(stored.events),
        stepped_at=stored.stepped_at,
        findings_bytes=stored.findings_bytes,
        evidence=dict(stored.evidence),
        had=dict(stored.had),
    )
