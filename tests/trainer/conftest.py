"""What a rank does to its process at its end must not outlive a test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """A rank that leaves ignores SIGTERM; whatever this process starts later must not."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
