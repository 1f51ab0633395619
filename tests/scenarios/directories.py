"""Run directories: those that `make_runs` writes, their shapes, and the field reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gonogo.planning.source import bundled_plan
from tests.data.field_reports import FIELD_REPORTS, PHASE, PLAN
from tests.data.make_runs import EPOCH, RUNS
from tests.judge.test_forgery import SHAPES, save_healthy
from tests.scenarios.scenario import Outcome, Scenario, directory, outcome_of

NOW = EPOCH + 100_000.0
"""An unfinished run is looked at long after its last line."""


def scenarios() -> Iterator[Scenario]:
    """Yield every recorded run, every healthy shape and every field report."""
    for name, make in RUNS.items():
        yield directory(f"directories/{name}", _saving(make), now=NOW)
    for shape in SHAPES:
        yield directory(f"directories/shape {shape}", _shape(shape), now=NOW)
    for report in FIELD_REPORTS:
        yield Scenario(f"directories/field report {report.name}", _reported(report.name))


def _saving(make: Callable[[Path], None]) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        make(folder / "run")
        return folder / "run"

    return save


def _shape(shape: str) -> Callable[[Path], Path]:
    return _saving(lambda folder: save_healthy(folder, SHAPES[shape](), shape))


def _reported(name: str) -> Callable[[], Outcome]:
    def outcome() -> Outcome:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            report = next(row for row in FIELD_REPORTS if row.name == name)
            path, now = report.save(Path(folder))
            return outcome_of(path, plan=bundled_plan(PLAN), phase=PHASE, now=now)

    return outcome
