"""Runs to judge: built in memory, or copied from tests/data/runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import make_runs

CopyRun = Callable[[str], Path]


@pytest.fixture
def copy_run(tmp_path: Path) -> CopyRun:
    """Factory `copy_run("healthy")` → a directory of one's own, `runs/{name}` below tmp_path."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(make_runs.HERE / "runs" / name, tmp_path / "runs" / name))

    return copy
