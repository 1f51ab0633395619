"""Count which path served which operation, and why.

One count per process and (operation, path, reason). `attention` counts calls by backend; within the
torch backend `prefix` and `window` count by kernel. A reason says why a path that is not the
preferred one served.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple


class Choice(NamedTuple):
    """What serves (a backend, or a kernel within one); `reason` is empty if it is preferred."""

    path: str
    reason: str = ""


class Served(NamedTuple):
    """One row: `calls` calls of `operation` went through `path` because of `reason`."""

    operation: str
    path: str
    reason: str
    calls: int


_lock = threading.Lock()
_counts: Counter[tuple[str, str, str]] = Counter()


def count(operation: str, path: str, reason: str = "") -> None:
    """Count one call."""
    with _lock:
        _counts[operation, path, reason] += 1


def snapshot() -> list[Served]:
    """All rows of this process so far, sorted."""
    with _lock:
        return [Served(*key, number) for key, number in sorted(_counts.items())]


def clear() -> None:
    """Start from zero: a new run in the same process."""
    with _lock:
        _counts.clear()
