"""How values are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"), (0.25, "0.25 s"), (41.2, "41 s"), (372.0, "6 min 12 s"),
        (300 * 110.0, "9.2 h"), (50_000 * 4096 / 38, "62.4 days"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_a_duration_is_said_as_people_say_it(seconds: float | None, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (847, "847"), (0.000512, "0.000512"), (math.nan, "NaN"), (123456.7, "123457")],
)
def test_a_number_keeps_its_digits(value: float | None, said: str) -> None:
    assert text.number(value) == said


def test_a_loss_has_four_decimals_even_when_it_is_round() -> None:
    assert text.loss(5.0) == "5.0000"
    assert text.loss(math.nan) == "NaN"


@given(st.text())
def test_no_text_breaks_out_of_a_table_cell(value: str) -> None:
    for cell in (text.inline(value), text.code(value)):
        assert "\n" not in cell
        unescaped = cell.replace("\\\\", "").replace("\\|", "")
        assert "|" not in unescaped
    assert "<" not in text.inline(value).replace("\\<", "")


@given(st.text(alphabet="`ab\n"))
def test_no_text_closes_its_code_block(value: str) -> None:
    found = text.block(value).splitlines()
    fence = found[0]
    assert found[-1] == fence
    assert all(line.strip() != fence for line in found[1:-1])


def test_a_text_of_fences_is_a_block_at_once() -> None:
    """A trainer's log may end in a megabyte of them: a report took hours, and all others waited."""
    found = text.block("`" * 2**16)
    assert found.splitlines()[0] == "`" * (2**16 + 1)
    assert text.block("a ```` b").startswith("`````\n")


def test_a_cell_holds_no_name_without_end() -> None:
    for cell in (text.inline, text.code):
        assert len(cell("*" * 2**20)) < 3 * text.MOST_CHARS
        assert "…" not in cell("a" * text.MOST_CHARS)
