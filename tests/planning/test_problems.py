"""Only the first problems of a plan are reported, and the search then stops."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import pytest

from gonogo.contract import errors
from gonogo.contract.errors import MOST_PROBLEMS, Rejected
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan

DEMO = bundled_plan("demo")
MANY = 40_000
"""About what a body of 1 MiB holds."""


def names(head: str, value: object = 1) -> dict[str, object]:
    return {f"{head}{number}": value for number in range(MANY)}


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "unknown keys": lambda: {**DEMO, **names("k")},
    "unknown settings": lambda: {**DEMO, "train": {**DEMO["train"], **names("k")}},
    "unknown remedies": lambda: {**DEMO, "remedies": names("r", {})},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_of_very_many_problems_the_first_are_looked_for(
    plan: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each may have been meant for takes long to find."""
    looked = []

    def look(word: str, known: list[str], **more: Any) -> list[str]:
        looked.append(word)
        return difflib.get_close_matches(word, known, **more)

    data = plan()
    monkeypatch.setattr(errors, "get_close_matches", look)
    with pytest.raises(Rejected, match=r"\(and more than 49 more\)$") as refused:
        resolve_plan(data)
    assert len(refused.value.problems) == MOST_PROBLEMS
    assert 0 < len(looked) <= MOST_PROBLEMS + 1


@pytest.mark.parametrize(
    "sets",
    [
        {"phases.nope.steps": 1, "phases.nopf.steps": 2},
        {"phases.nope.steps": 1, "phases.smoke.stepz": 2},
        {"phases.nope.steps": 1, "train.nope": 3},
    ],
    ids=["paths", "a path and the plan", "a path and the configuration"],
)
def test_a_path_that_leads_nowhere_hides_nothing_else(sets: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match=r"^set phases.nope.steps: .* \(and 1 more\)$") as refused:
        resolve_plan(DEMO, sets)
    assert [row.path for row in refused.value.problems] == list(sets)
