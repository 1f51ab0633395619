"""What the control plane has acknowledged of a run, and whether a newer attempt owns the run.

`.reported.json` is a cache: losing it repeats idempotent reports and nothing else.
"""

import logging
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gonogo.contract.agent import Command, CommandKind, TelemetryAck
from gonogo.contract.errors import StaleToken
from gonogo.contract.lifecycle import RunEvent
from gonogo.files import read_small
from gonogo.rundir import save_json

STALE_AGAIN_S = 5.0
"""How much later the control plane must repeat that a token is stale."""
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


class Fence:
    """Whether the token of an attempt is stale. The control plane must say so twice.

    Args:
        run: the run.
        token: the token that it was claimed with.
        called_stale: run → when (monotonic clock) its token was first called stale. Shippers that
            are made for every attempt share it.
    """

    def __init__(self, run: str, token: int, called_stale: dict[str, float] | None) -> None:
        self._run, self._token = run, token
        self._called_stale = {} if called_stale is None else called_stale
        self.fenced = False
        """Whether a newer attempt owns the run."""

    @property
    def stale(self) -> bool:
        """Whether the last answer was that the token is stale."""
        return self.fenced or self._run in self._called_stale

    def note_accepted(self) -> None:
        """Note that the control plane accepted something under this token."""
        self._called_stale.pop(self._run, None)

    def note_stale(self, error: StaleToken, now_mono: float) -> bool:
        """Note that the token was called stale; False where no newer token was named.

        A control plane in the middle of a restore may say so once.
        """
        if error.newer <= self._token:
            return False
        if self._run not in self._called_stale:
            _log.warning("called stale: %s", error, extra={"action": "called_stale"})
        if now_mono - self._called_stale.setdefault(self._run, now_mono) >= STALE_AGAIN_S:
            _log.error("fenced off: %s", error, extra={"action": "fenced"})
            self.fenced = True
        return True


def superseded() -> TelemetryAck:
    """Return the answer that stands for a stale token."""
    command = Command(kind=CommandKind.SUPERSEDE, reason="the run's token is stale")
    return TelemetryAck(command=command)
