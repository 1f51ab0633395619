"""What made an order or a decision: the version of gonogo, its judging sources and its plug-ins."""

from typing import Self

from pydantic import Field

from gonogo.contract.wire import Recorded

READS_BEFORE = "commit a2d12bc9 reads what was recorded before"
"""What reads orders, decisions, databases and snapshots of an earlier form."""


class MadeBy(Recorded):
    """The code that made an order or a decision."""

    gonogo: str
    """Version of gonogo."""
    sources: str
    """SHA-256 over the sources that judge (`gonogo.watch.registry`)."""
    commit: str | None = None
    """Of the checkout, without its uncommitted changes; null for an installed package."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Installed package that provides detectors or metrics → its version."""

    def is_same_code(self, other: Self) -> bool:
        """Whether both judge alike; commits may differ in other files."""
        return self.model_copy(update={"commit": other.commit}) == other

    def words(self) -> str:
        """Return it for a sentence."""
        with_ = "".join(f", {name} {version}" for name, version in self.packages.items())
        return f"gonogo {self.gonogo} (sources {self.sources[:12]}{with_})"
