"""Which path served how often, and why?

One count per process and (operation, path, reason): `attention` calls by backend, and within the
torch backend the `prefix` and the `window` by kernel. A reason that is not empty says why the path
was not the preferred one, so a run that silently fell back can be told from one that did not.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple


class Served(NamedTuple):
    """One row: `calls` calls of `operation` went through `path` because of `reason`."""

    operation: str
    path: str
    reason: str
    calls: int


_lock = threading.Lock()
_counts: Counter[tuple[str, str, str]] = Counter()


def count(operation: str, path: str, reason: str = "") -> None:
    """Note one call."""
    with _lock:
        _counts[operation, path, reason] += 1


def snapshot() -> list[Served]:
    """All rows of this process so far, sorted; cheap enough to call at every log line."""
    with _lock:
        return [Served(*key, number) for key, number in sorted(_counts.items())]


def clear() -> None:
    """Start from zero: a new run in the same process."""
    with _lock:
        _counts.clear()
