"""Does a newer attempt own the run? Believed when the control plane says so twice."""

import logging

from gonogo.contract.agent import Command, CommandKind, TelemetryAck
from gonogo.contract.errors import StaleToken

STALE_AGAIN_S = 5.0
"""How much later the control plane must say again that a token is stale."""

_log = logging.getLogger(__name__)


class Fence:
    """What the control plane has said of one attempt's token.

    Args:
        run: the run.
        token: the token that it was claimed with.
        called_stale: run → when (monotonic clock) the control plane first called its token stale;
            shared by the shippers that whoever makes one for every attempt makes.
    """

    def __init__(self, run: str, token: int, called_stale: dict[str, float] | None) -> None:
        self._run, self._token = run, token
        self._called_stale = {} if called_stale is None else called_stale
        self.fenced = False
        """Whether the token was called stale, twice and `STALE_AGAIN_S` apart."""

    @property
    def stale(self) -> bool:
        """Whether the control plane's last word was that the token is stale."""
        return self.fenced or self._run in self._called_stale

    def note_accepted(self) -> None:
        """Take note that the control plane took something under this token."""
        self._called_stale.pop(self._run, None)

    def note_stale(self, error: StaleToken, now_mono: float) -> bool:
        """Take note that it called the token stale; False where it named no newer one.

        Once may be a control plane in the middle of a restore, or an answer to somebody else.
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
