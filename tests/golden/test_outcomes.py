"""Do the quick scenarios have the outcomes that are recorded, as `make outcomes` asks?"""

from __future__ import annotations

import pytest

from tests.scenarios.catalogue import catalogue, recorded
from tests.scenarios.scenario import Scenario

QUICK = [row for row in catalogue() if not row.long]
RECORDED = recorded(long=False)


def test_every_quick_scenario_has_a_recorded_outcome() -> None:
    assert sorted(row.name for row in QUICK) == sorted(RECORDED)


def test_only_a_quick_scenario_holds_numbers() -> None:
    found = {"verdict": "GO", "numbers": {"near": {}}}
    assert Scenario("quick", lambda: found).outcome() == found
    assert Scenario("long", lambda: found, long=True).outcome() == {"verdict": "GO"}
    assert Scenario("long", lambda: {"each": [found]}, long=True).outcome() == {
        "each": [{"verdict": "GO"}]
    }


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_an_outcome_is_as_recorded(row: Scenario) -> None:
    assert row.outcome() == RECORDED[row.name]
