"""What do tests of a supervised run share? Runs that are cleaned up whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.ids import Kind, new_id
from tests.worker.runs import NewRun, SupervisedRun, build_test_order


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[NewRun]:
    """Factory `new_run(*keeper options, environ=…, **order parts)` → a run that was started."""
    started: list[SupervisedRun] = []

    def start(
        *options: str, environ: dict[str, str] | None = None, **changes: Any
    ) -> SupervisedRun:
        path = tmp_path / new_id(Kind.RUN)  # the token: two sessions of tests must not share it
        order = build_test_order(path.name, **changes)
        run = SupervisedRun(path=path, order=order, environ=environ or {})
        started.append(run)
        return run.start(*options)

    yield start
    for run in started:
        run.clean_up()
