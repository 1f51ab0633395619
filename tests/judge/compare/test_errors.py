"""The printed error rates are those of the code, and no worse than asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare_errors import COMPARISONS, campaign_rows, row_of

BENCHMARKS = (Path(__file__).parents[3] / "docs/explanation/benchmarks.md").read_text()
PAGE, CAMPAIGNS = BENCHMARKS.split("## How often comparisons are wrong")[1].split("Whole campaigns")


@pytest.mark.long
@pytest.mark.parametrize("ratio", [1.02, 1.05])
def test_a_row_of_the_page_is_made_by_the_command(ratio: float) -> None:
    assert row_of(ratio, 0.01, COMPARISONS, 1) in PAGE


@pytest.mark.long
def test_a_row_of_the_campaigns_page_is_made_by_the_command() -> None:
    row = next(campaign_rows(COMPARISONS, 1))
    assert row in CAMPAIGNS.splitlines()


def test_campaigns_that_look_several_times_err_no_more_often_than_asked_for() -> None:
    rows = [row.split("|") for row in CAMPAIGNS.splitlines() if row.startswith("| 1.0")]
    assert len(rows) == 12
    for _, ratio, _, better, worse, tie, repeats, _ in rows:
        wrong = [worse] if float(ratio) == 1.05 else [worse, better]
        wrong += [tie] if float(ratio) in (1.02, 1.05) else []
        assert max(float(cell.strip(" %")) for cell in wrong) <= 2.5, ratio
        assert 3.0 <= float(repeats) <= 6.0


def test_wrong_winners_and_ties_are_as_rare_as_asked_for() -> None:
    """Two in a hundred and a half at the margin; four standard errors of 2000 draws are 1.4 %."""
    rows = [line.split("|")[3:6] for line in PAGE.splitlines() if line.startswith("| 1.02")]
    assert len(rows) == 3
    for row in rows:
        assert max(float(cell.strip(" %")) for cell in row) <= 2.5 + 1.4, row
