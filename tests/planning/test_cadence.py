"""A cadence that puts the first checkpoint days away is refused at submission, in one error."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan

AT = "phases.production.checkpoint"


def m7c(**cadence: Any) -> dict[str, Any]:
    return {f"{AT}.{name}": value for name, value in cadence.items()}


@pytest.mark.parametrize(
    ("cadence", "hours"),
    [
        ({"every_steps": 50_000, "every_s": None}, 1264),
        ({"every_steps": None, "every_s": 86_401}, 24),
        ({"every_steps": 950, "every_s": None}, 24),
        ({"every_steps": None, "every_s": None}, 1264),
    ],
    ids=["at the end", "a second too late", "a step too late", "never"],
)
def test_a_first_checkpoint_days_away_is_refused(cadence: dict[str, Any], hours: int) -> None:
    with pytest.raises(Rejected) as refused:
        resolve_plan(bundled_plan("m7c-125m"), m7c(**cadence))
    (problem,) = refused.value.problems
    assert problem.path == AT
    assert f"after {hours} h" in problem.message


@pytest.mark.parametrize(
    "cadence",
    [
        {"every_steps": 949, "every_s": None},
        {"every_steps": None, "every_s": 86_400},
        {"every_steps": 50_000, "every_s": 3_600},
    ],
    ids=["within a day by steps", "a day", "by time, whatever the steps"],
)
def test_a_first_checkpoint_within_a_day_is_accepted(cadence: dict[str, Any]) -> None:
    resolve_plan(bundled_plan("m7c-125m"), m7c(**cadence))


def test_a_short_phase_may_save_nothing_or_its_last_step() -> None:
    never = dict.fromkeys(("every_steps", "every_s"))
    resolve_plan(bundled_plan("m7c-125m"), {"phases.smoke.checkpoint": never})
    resolve_plan(bundled_plan("m7c-125m"), {"phases.smoke.checkpoint.every_s": None})


def test_the_plans_own_floor_counts_before_the_profiles() -> None:
    sets = m7c(every_steps=5_000, every_s=None)
    resolve_plan(bundled_plan("m7c-125m"), {**sets, "watch.slow.floor_tok_s": 847})
