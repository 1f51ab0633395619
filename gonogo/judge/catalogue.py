"""What are the detectors, their settings and their ceilings? The page docs/detectors.md, from them.

    python -m gonogo.judge.catalogue > docs/detectors.md

What stands around them is `catalogue.md` beside this file. A test compares the page with the code.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from gonogo.contract.patience import MEANING, TABLE, Cell, ProgramKind
from gonogo.contract.watch import Watch
from gonogo.judge.gate.ceilings import CEILINGS
from gonogo.watch.registry import REGISTRY, Kind

_FRAME = Path(__file__).with_suffix(".md")
_PLACE = "<!-- detectors -->\n"
_PATIENCE = "<!-- patience -->\n"


def page() -> str:
    """Return docs/detectors.md."""
    sections = [_section(number, row) for number, row in enumerate(REGISTRY, start=1)]
    frame = _FRAME.read_text().replace(_PATIENCE, _patience())
    return frame.replace(_PLACE, "\n".join(sections))


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


def _section(number: int, row: Kind) -> str:
    text = f"## D{number} `{row.name}`\n\n{row.sentence}\n"
    settings = getattr(Watch(), str(row.name), None)
    rows = list(_rows(settings, f"{row.name}.")) if isinstance(settings, BaseModel) else []
    if not rows:
        return text
    return f"{text}\n| setting | default | ceiling |\n|---|---|---|\n" + "".join(rows)


def _rows(settings: BaseModel, prefix: str) -> Iterator[str]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        path = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _rows(value, f"{path}.")
            continue
        default = "none" if value is None else value if isinstance(value, str) else f"{value:g}"
        yield f"| `{path}` | {default} | {_ceiling(path)} |\n"


def _ceiling(path: str) -> str:
    ceiling = CEILINGS.get(path)
    return "" if ceiling is None else ceiling.words()


if __name__ == "__main__":
    sys.stdout.write(page())
