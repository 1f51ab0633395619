"""All scenarios, by family, and the file that holds their outcomes.

A family is a module here with a function `scenarios`. `outcomes.json` has two keys: `outcomes`,
which every landing compares, and `long`, which `make outcomes ARGS=--all` compares as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.scenarios import chance, directories, faults, measured, simulated, standing, waiting
from tests.scenarios.scenario import Outcome, Scenario

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "outcomes.json"
FAMILIES = (chance, directories, faults, measured, simulated, standing, waiting)


def catalogue() -> Iterator[Scenario]:
    """Yield every scenario once.

    Raises:
        ValueError: two scenarios have one name.
    """
    names: set[str] = set()
    for family in FAMILIES:
        for row in family.scenarios():
            if row.name in names:
                raise ValueError(f"two scenarios are named {row.name!r}")
            names.add(row.name)
            yield row


def recorded(*, long: bool) -> dict[str, Outcome]:
    """Return the recorded outcomes."""
    document = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return {**document.get("outcomes", {}), **(document.get("long", {}) if long else {})}


def write_golden(found: Mapping[str, Outcome], *, kept: bool, long: bool) -> None:
    """Record outcomes, one line each.

    Args:
        found: by name.
        kept: whether scenarios that are not in `found` keep their recorded outcome.
        long: whether the long scenarios were looked at.
    """
    document = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    is_long = {row.name: row.long for row in catalogue()}
    parts: dict[str, dict[str, Outcome]] = {"outcomes": {}, "long": {}}
    for key, rows in parts.items():
        if kept or (key == "long" and not long):
            rows.update({n: o for n, o in document.get(key, {}).items() if n in is_long})
    for name, outcome in found.items():
        parts["long" if is_long[name] else "outcomes"][name] = outcome
    text = ",\n".join(f'"{key}": {_rows(rows)}' for key, rows in parts.items())
    GOLDEN.write_text(f"{{\n{text}\n}}\n")


def _rows(rows: Mapping[str, Outcome]) -> str:
    lines = (f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
    return "{\n" + ",\n".join(lines) + "\n}"
