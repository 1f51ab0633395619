"""How near is a detector to its limit?"""

from collections.abc import Mapping
from typing import Self

from gonogo.contract.wire import Number, Recorded


class Near(Recorded):
    """Distance of one detector to its limit, of the rank that is nearest."""

    value: Number | None = None
    """What the detector measures now; null where it counts nothing at the moment."""
    limit: Number | None = None
    """Where it halts or, by its action, warns."""
    unit: str = ""
    """Unit of `value` and `limit`: `s`, `steps`, `MB`, `tokens/s`; empty for a ratio."""
    below: bool = False
    """Whether the detector acts when the value falls below the limit."""
    time_left_s: float | None = None
    """Seconds until the limit is reached if nothing changes; null where that is unknown."""
    blind: str | None = None
    """Why the detector cannot find anything now; null where it can."""

    @classmethod
    def in_time(cls, seconds: float, limit_s: float | None) -> Self:
        """Return the distance of so many seconds to a limit that acts once they are over."""
        value = max(0.0, seconds)
        left_s = None if limit_s is None else max(0.0, limit_s - value)
        return cls(value=value, limit=limit_s, unit="s", time_left_s=left_s)

    @property
    def share(self) -> float | None:
        """Return how much of the way to the limit is gone: 1.0 at the limit."""
        if self.value is None or self.limit is None:
            return None
        part, whole = (self.limit, self.value) if self.below else (self.value, self.limit)
        return part / whole if whole > 0.0 else None


def nearest(rows: Mapping[str, Near], most: int) -> list[tuple[str, Near]]:
    """Return the detectors that are nearest to their limits, the nearest first."""
    known = [(name, row, row.share) for name, row in rows.items() if row.blind is None]
    shares = [(share, name, row) for name, row, share in known if share is not None]
    return [(name, row) for _, name, row in sorted(shares, key=lambda told: -told[0])[:most]]
