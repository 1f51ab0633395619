"""What a watcher needs from the sender of a run."""

from collections.abc import Mapping

from gonogo.contract.agent import Command
from gonogo.contract.finding import Finding, Near
from gonogo.contract.records import ExitRecord


class Shipping:
    """Sends one run while it is watched; every call but `close` returns at once.

    This one sends nothing: there is no control plane.
    """

    suspect: bool = False
    """Whether the run looks sick just now."""
    near: Mapping[str, Near] | None = None
    """How near each detector is to its limit; None: nothing new."""
    backlog_lines: int = 0
    """Heartbeat lines that have not been acknowledged."""

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
