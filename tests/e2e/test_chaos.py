"""Do seeded kills of every part leave everything whole? In short; `make chaos` is the long one."""

import pytest

from tests.e2e.chaos import run_chaos


@pytest.mark.long
def test_kills_at_seeded_moments_lose_nothing() -> None:
    said: list[str] = []
    assert run_chaos(seed=11, kills=20, limit_s=240, say=said.append) == [], said
