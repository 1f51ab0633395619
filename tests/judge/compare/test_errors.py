"""Comparisons of simulated runs are wrong no more often than asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare_errors import COMPARISONS, campaign_rows, row_of

PAGE = (Path(__file__).parents[3] / "docs/explanation/benchmarks.md").read_text()
DRAWS = 400
MOST = 2.5 + 3.1
"""Percent: two in a hundred and a half, and four standard errors of so many draws."""


def cells_of(row: str) -> list[float]:
    return [float(cell.strip(" %")) for cell in row.strip("| ").split("|")]


@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_wrong_winners_and_ties_are_as_rare_as_asked_for(noise: float) -> None:
    _, _, *shares = cells_of(row_of(1.02, noise, DRAWS, 1))
    assert max(shares) <= MOST


@pytest.mark.long
def test_campaigns_that_look_several_times_err_no_more_often_than_asked_for() -> None:
    for row in campaign_rows(DRAWS, 1):
        ratio, _, better, worse, tie, repeats = cells_of(row)
        wrong = [worse] if ratio == 1.05 else [worse, better]
        wrong += [tie] if ratio in (1.02, 1.05) else []
        assert max(wrong) <= MOST, ratio
        assert 3.0 <= repeats <= 6.0


@pytest.mark.long
def test_a_row_of_the_page_is_made_by_the_command() -> None:
    cells = [cell.strip() for cell in row_of(1.02, 0.01, COMPARISONS, 1).split("|")]
    assert "|".join(["|1.02", *cells[3:6], ""]) in PAGE
