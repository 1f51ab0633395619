"""A bounded list of problems does not claim to be complete."""

from __future__ import annotations

import pytest

from gonogo.cli.app import refusal_text
from gonogo.contract.errors import MOST_PROBLEMS, Problem, Rejected


@pytest.mark.parametrize(
    ("number", "head"),
    [(2, "2 problems"), (MOST_PROBLEMS, f"the first {MOST_PROBLEMS} problems")],
)
def test_the_first_line_says_whether_these_are_all(number: int, head: str) -> None:
    rows = tuple(Problem(path=f"k{row}", message="unknown") for row in range(number))
    assert refusal_text(Rejected("no", problems=rows)).splitlines()[0] == head
