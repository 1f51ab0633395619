"""Was a run directory pruned? Then it says so itself, and nothing is judged by what is left of it.

`gonogo prune` leaves `pruned.json`: `{v, what: all | checkpoints, at (Unix seconds), policy}`.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gonogo.contract.errors import NotFound
from gonogo.plain_file import read_small

PRUNED_NAME = "pruned.json"


def load_pruned(path: Path) -> dict[str, Any] | None:
    """Return what was pruned of a run directory, None where nothing was; a torn record is `{}`."""
    try:
        found = json.loads(read_small(path / PRUNED_NAME))
    except (FileNotFoundError, PermissionError):
        return None  # who may read nothing of it is told so by what reads next
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pruned_text(path: Path) -> str | None:
    """Return the sentence about a run directory of which something was pruned, else None."""
    found = load_pruned(path)
    if found is None:
        return None
    what = "its checkpoints were" if found.get("what") == "checkpoints" else "it was"
    at, policy = found.get("at"), found.get("policy")
    when = f" on {_day(at)}" if isinstance(at, (int, float)) else ""
    return f"{what} pruned{when} ({policy if isinstance(policy, str) else 'nobody says why'})"


def _day(at: float) -> str:
    """Return the day of a moment in Unix seconds, where any calendar has it."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
    except (OverflowError, OSError, ValueError):
        return "no day that there is"


def check_not_pruned(path: Path) -> None:
    """Refuse a run directory whose evidence was pruned: nothing is judged by what is left of it.

    Raises:
        NotFound: it was; one of which only the checkpoints went is whole evidence.
    """
    found = load_pruned(path)
    if found is not None and found.get("what") != "checkpoints":
        raise NotFound(f"{path.name}: {pruned_text(path)}")
