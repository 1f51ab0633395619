"""Single edits of a healthy run's directory, of the catalogue in `test_forgery`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path

from tests.judge.test_forgery import (
    SHAPES,
    Edit,
    field_edits,
    file_edits,
    one_of_each_field,
    save_healthy,
)
from tests.scenarios.scenario import Outcome, Scenario, outcome_of

FILES = ("two ranks", "talkative", "resumed")
"""Shapes of which every file is edited; the first one is quick."""
FIELDS = "talkative"
"""Shape of which every field is edited; a quarter of these edits is quick."""


def scenarios() -> Iterator[Scenario]:
    """Yield the edits of files and of fields."""
    for shape in FILES:
        path = _healthy(shape)
        yield from _forged(path, file_edits(path), long=shape != FILES[0])
    for part in range(4):
        yield Scenario(f"forgeries/{FIELDS}: fields {part}", partial(_go, part), long=part > 0)


def _forged(folder: Path, edits: Iterable[tuple[str, Edit]], *, long: bool) -> Iterator[Scenario]:
    for name, edit in edits:
        yield Scenario(f"forgeries/{folder.name}: {name}", partial(_judged, folder, edit), long)


def _go(part: int) -> Outcome:
    """Return the edits of fields that leave a GO: an order that gains a field changes nothing."""
    path = _healthy(FIELDS)
    edits = one_of_each_field(field_edits(path), part)
    return {"go": [name for name, edit in edits if _judged(path, edit)["verdict"] == "GO"]}


def _judged(folder: Path, edit: Edit) -> Outcome:
    copy = folder.parent / f"{folder.name} copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    edit(copy)
    return {"verdict": outcome_of(copy)["verdict"]}


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def _healthy(shape: str) -> Path:
    """Write a healthy directory, and beside it one of another run; both last as the process."""
    root = Path(_root().name)
    order = SHAPES[shape]()
    other = order.model_copy(update={"run": "run_01K00000000000000000000009"})
    save_healthy(root / shape, order, shape)
    save_healthy(root / f"other {shape}", other, shape)
    return root / shape
