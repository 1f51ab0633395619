"""What a watcher needs from the sender of a run: nothing offline, a thread of the worker else."""

from collections.abc import Mapping
from typing import Protocol

from gonogo.contract.agent import Command
from gonogo.contract.finding import Finding, Near
from gonogo.contract.records import ExitRecord


class Shipping(Protocol):
    """Sends one run while it is watched; every call but `close` returns at once."""

    suspect: bool
    """Whether the run looks sick just now."""
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
        """Send a finding that the disk does not accept."""

    def close(self, record: ExitRecord | None) -> None:
        """Send the rest and the end, for a limited time.

        Args:
            record: how the run ended; None when that cannot be read.
        """


class Offline:
    """No control plane."""

    suspect = False
    near: Mapping[str, Near] | None = None
    backlog_lines = 0

    def take_command(self) -> Command | None:
        """Return None."""
        return None

    def silent_s(self) -> float:
        """Return 0."""
        return 0.0

    def tell(self, finding: Finding) -> None:
        """Do nothing."""

    def close(self, record: ExitRecord | None) -> None:
        """Do nothing."""
