"""Which detectors are nearest to their limits, as one line."""

from collections.abc import Mapping

from gonogo.cli.output import duration
from gonogo.contract.near import Near, nearest

SHOWN = 3
LEAST_SHARE = 0.1
"""A detector that has less than this of the way to its limit behind it is not worth a word."""


def near_line(rows: Mapping[str, Near]) -> str | None:
    """Return the nearest detectors: `nearest: stall 12 of 60 s, loader 0.2 of 0.3`; else None."""
    shown = [row for row in nearest(rows, SHOWN) if (row[1].share or 0.0) >= LEAST_SHARE]
    return f"nearest: {', '.join(map(_words, shown))}" if shown else None


def _words(named: tuple[str, Near]) -> str:
    name, row = named
    unit = f" {row.unit}" if row.unit else ""
    joined = "above" if row.below else "of"
    left = "" if row.time_left_s is None else f" ({duration(row.time_left_s)} left)"
    return f"{name} {row.value:.4g} {joined} {row.limit:.4g}{unit}{left}"
