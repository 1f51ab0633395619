"""Fixtures of the pages' tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """SQLite alone: the queries are tested on both databases elsewhere."""
    return sqlite_url
