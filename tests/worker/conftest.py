"""What do tests of runs of the service share? Runs under the worker's keeper, which ships."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervise.runs import NewRun, starting


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[NewRun]:
    """Factory `new_run(*keeper options, environ=…, **order parts)` → a run that was started."""
    with starting(tmp_path, "worker.keeper_process") as new:
        yield new
