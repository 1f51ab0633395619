"""Runs on several nodes, which are cleaned up whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervise.nodes.cluster import NewCluster, starting_cluster


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Factory `new_cluster(*keeper options, **order parts)` → a run that was started."""
    with starting_cluster(tmp_path) as new:
        yield new
