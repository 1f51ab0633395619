"""The page docs/detectors.md: tables of the detectors and of patience, from the code.

    python -m gonogo.judge.catalogue > docs/detectors.md

What stands around them is `catalogue.md` beside this file. A test compares the page with the code.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from gonogo import contract
from gonogo.contract.patience import MEANING, TABLE, Cell, ProgramKind
from gonogo.contract.watch import Action, CanHalt, IdentityCheck, Watch
from gonogo.contract.yaml_text import parse_yaml
from gonogo.watch.registry import REGISTRY, Kind

_FRAME = Path(__file__).with_suffix(".md")
_PLANS = Path(contract.__file__).parent / "plans"
_PLACE = "<!-- detectors -->\n"
_PATIENCE = "<!-- patience -->\n"


def page() -> str:
    """Return docs/detectors.md."""
    return _FRAME.read_text().replace(_PATIENCE, _patience()).replace(_PLACE, _table())


def _patience() -> str:
    """Return the table of patience."""
    head = "| place | " + " | ".join(ProgramKind) + " | where a rank is |\n"
    rows = (
        f"| `{place}` | {' | '.join(_cell(row[kind]) for kind in ProgramKind)} | {MEANING[place]} |"
        for place, row in TABLE.items()
    )
    return f"{head}|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _cell(cell: Cell) -> str:
    """Return a cell of the table: seconds and multiple."""
    seconds = "none" if cell.seconds is None else f"{cell.seconds:g} s"
    return seconds if cell.multiple is None else f"{seconds}, {cell.multiple:g} × {cell.of}"


def _table() -> str:
    """Return the table of detectors."""
    head = "| | detector | what it sees | limits (defaults) | action | halts in |\n"
    rows = (_row(number, row) for number, row in enumerate(REGISTRY, start=1))
    return f"{head}|---|---|---|---|---|---|\n" + "".join(rows)


def _row(number: int, row: Kind) -> str:
    settings = getattr(Watch(), str(row.name), None)
    rows = _limits(settings, "") if isinstance(settings, BaseModel) else ()
    limits = ", ".join(f"`{name}` {value}" for name, value in rows)
    halts = isinstance(settings, IdentityCheck) or (
        isinstance(settings, CanHalt) and settings.action is Action.HALT
    )
    action, where = (Action.HALT, "all plans") if halts else (Action.WARN, _asked(row.name))
    return f"| D{number} | `{row.name}` | {row.sentence} | {limits} | {action} | {where} |\n"


def _limits(settings: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a detector and their defaults, but its action."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _limits(value, f"{prefix}{name}.")
        elif name != "action":
            yield f"{prefix}{name}", "none" if value is None else f"{value:g}"


def _asked(detector: str) -> str:
    """Return which bundled plans ask for the detector's halt."""
    plans = {path.stem: parse_yaml(path.read_text()) for path in sorted(_PLANS.glob("*.yaml"))}
    asked = [
        name
        for name, plan in plans.items()
        if plan.get("watch", {}).get(detector, {}).get("action") == Action.HALT
    ]
    return "all bundled plans" if len(asked) == len(plans) else ", ".join(asked)


if __name__ == "__main__":
    sys.stdout.write(page())
