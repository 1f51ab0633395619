"""To whom does a watcher tell what it sees? To nobody, unless a service's worker gives it one.

Whoever ships does so beside the ticks: every call but `close` returns at once, so a control plane
that is slow, down or gone delays nothing and decides nothing.
"""

from collections.abc import Mapping
from typing import Protocol

from gonogo.contract.agent import Command
from gonogo.contract.finding import Finding
from gonogo.contract.near import Near
from gonogo.contract.records import ExitRecord


class Shipping(Protocol):
    """Ships one run while it is watched."""

    suspect: bool
    """Whether the run looks sick just now; told along."""
    near: Mapping[str, Near] | None
    """How near each detector is to its limit; None: nothing new."""

    @property
    def backlog_lines(self) -> int:
        """Heartbeat lines that have not been acknowledged."""

    def take_command(self) -> Command | None:
        """Return what the control plane asks, once."""

    def silent_s(self) -> float:
        """Return seconds since the control plane last acknowledged anything, sleep included."""

    def tell(self, finding: Finding) -> None:
        """Tell of a finding that the disk does not take: it may never stand in the file."""

    def close(self, record: ExitRecord | None) -> None:
        """Ship what is left and the end, for a limited time; then no more.

        Args:
            record: how the run ended; None when that cannot be read.
        """


class Offline:
    """Nothing is shipped, nobody asks, and nobody's silence means anything."""

    suspect = False
    near: Mapping[str, Near] | None = None
    backlog_lines = 0

    def take_command(self) -> Command | None:
        """Return None: nobody asks."""
        return None

    def silent_s(self) -> float:
        """Return 0: nobody is waited for."""
        return 0.0

    def tell(self, finding: Finding) -> None:
        """Do nothing: who is there reads the log."""

    def close(self, record: ExitRecord | None) -> None:
        """Do nothing."""
