"""How did one process end? The words of an exit stamp, `exit_rank{N}.json`. Stdlib only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HALTED_CODE = 3
"""Exit code of a trainer that left because it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended; `at` in Unix seconds.

    One of `code` and `signal` is set, or neither: it ended, and nobody saw how.
    """

    code: int | None
    signal: int | None
    at: float
    lost_peer: bool = False
    """Whether its own last error was that another rank was gone."""
    disk_refused: bool = False
    """Whether the disk refused this at first: it may have taken none of its last lines either."""

    @property
    def is_known(self) -> bool:
        """Whether anybody saw how it ended."""
        return self.code is not None or self.signal is not None

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        document = {"v": 1, "code": self.code, "signal": self.signal, "at": self.at}
        told = {"lost_peer": self.lost_peer, "disk_refused": self.disk_refused}
        return {**document, **{name: True for name, holds in told.items() if holds}}


def ended_of(document: Mapping[str, Any]) -> Ended:
    """Return the record in exit_rank{N}.json."""
    return Ended(
        code=document.get("code"),
        signal=document.get("signal"),
        at=document["at"],
        lost_peer=document.get("lost_peer") is True,
        disk_refused=document.get("disk_refused") is True,
    )
