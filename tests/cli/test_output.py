"""Durations are said as people say them (R18: 62 days, not 5389473 s)."""

import pytest

from gonogo.cli.output import duration, out, print_table
from gonogo.contract.ids import Kind, new_id


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


def test_identifiers_are_whole_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", 60)
    name = new_id(Kind.RUN)
    print_table(("id", "text", "more"), [(name, "a long text " * 8, "another " * 9)])
    assert name in capsys.readouterr().out
