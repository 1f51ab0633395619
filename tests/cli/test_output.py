"""Durations are said as people say them (R18: 62 days, not 5389473 s)."""

import pytest

from gonogo.cli.output import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (42.4, "42 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (50_000 * 4096 / 38, "62.4 d"),
    ],
)
def test_a_duration_uses_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
