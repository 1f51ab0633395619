"""Did every branch and every block have a say? Gates and selection by layer, from the run's files.

`gate_health.csv` and `k_stats.csv` hold one row a step and layer, `fallback_counters.csv` says
which attention path served how often. Each is read line by line; rows that are none are left out.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

FILES = ("gate_health.csv", "k_stats.csv")
SERVED = "fallback_counters.csv"
COLUMNS = ("entropy", "max_share", "distance_blocks", "distinct_share", "kept_share")
"""What the two files say of a layer at a step."""
MAX_ROWS = 2_000_000
"""Lines of one of the trainer's files that are read, at most."""
MAX_LINE = 4096
"""No line of them comes near this; of a file that has such a one nothing more is read."""
MAX_LAYERS = 1_000
"""Layers that are told, at most: those that the files name first."""
MAX_SERVED = 100
"""Ways of serving that are told, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerColumn:
    """One number of a layer over a run."""

    first: float
    last: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHealth:
    """One layer; a column that no row tells is not there."""

    layer: int
    columns: Mapping[str, LayerColumn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """So many calls of an operation went one way, and why not the preferred one."""

    operation: str
    path: str
    reason: str
    calls: int


def lines_of(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a trainer's file, whatever stands in it: a hole has neither line nor end.

    The file is closed after the last one.

    Raises:
        OSError: it cannot be read any more.
    """
    with io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as text:
        for _ in range(MAX_ROWS):
            line = text.readline(MAX_LINE)
            if not line or len(line) == MAX_LINE:
                return
            yield line.replace("\x00", "")


def read_layers(files: Iterable[Iterable[str]]) -> tuple[LayerHealth, ...]:
    """Return what the files say of every layer, by layer; of a step said twice the later row."""
    layers: dict[int, dict[str, dict[int, float]]] = {}
    for lines in files:
        for row in _rows(lines):
            step, layer = _whole(row.get("step")), _whole(row.get("layer"))
            if step is None or layer is None or (layer not in layers and len(layers) >= MAX_LAYERS):
                continue
            for name in COLUMNS:
                value = _finite(row.get(name))
                if value is not None:
                    layers.setdefault(layer, {}).setdefault(name, {})[step] = value
    return tuple(
        LayerHealth(
            layer=layer,
            columns={name: _column(rows[name]) for name in COLUMNS if name in rows},
        )
        for layer, rows in sorted(layers.items())
    )


def _column(values: Mapping[int, float]) -> LayerColumn:
    return LayerColumn(
        first=values[min(values)],
        last=values[max(values)],
        low=min(values.values()),
        high=max(values.values()),
        steps=len(values),
    )


def read_served(lines: Iterable[str]) -> tuple[Served, ...]:
    """Return which attention path served how often, the most frequent first."""
    found = []
    for row in _rows(lines):
        calls = _whole(row.get("calls"))
        operation, path = row.get("operation"), row.get("path")
        if calls is not None and operation and path:
            reason = row.get("reason") or ""
            found.append(Served(operation=operation, path=path, reason=reason, calls=calls))
            if len(found) == MAX_SERVED:
                break
    return tuple(sorted(found, key=lambda row: (-row.calls, row.operation, row.path)))


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str | None]]:
    """Yield the rows of a CSV file up to the first line that no CSV reader takes."""
    try:
        yield from csv.DictReader(lines)
    except (csv.Error, OSError):
        return


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
