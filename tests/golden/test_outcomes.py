"""Do scenarios have the outcomes that are recorded? A slice of `make outcomes`."""

from __future__ import annotations

import pytest

from tests.scenarios.catalogue import catalogue, recorded
from tests.scenarios.scenario import Scenario

EVERY = 12
"""Every so many of the quick scenarios are looked at; `make outcomes` looks at all of them."""
QUICK = [row for row in catalogue() if not row.long]


def test_every_quick_scenario_has_a_recorded_outcome() -> None:
    assert sorted(row.name for row in QUICK) == sorted(recorded(long=False))


@pytest.mark.parametrize("row", QUICK[::EVERY], ids=lambda row: row.name)
def test_an_outcome_is_as_recorded(row: Scenario) -> None:
    assert row.outcome() == recorded(long=False)[row.name]
