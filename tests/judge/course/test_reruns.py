"""How far does a run go back that was cut off too late for its gate to see enough?"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.criterion import Criterion
from gonogo.contract.plan import Plan
from gonogo.judge.course.reruns import REPEATED_STEPS, earlier_beginnings
from gonogo.planning.source import bundled_plan, parse_plan, with_overrides


def plan_of(steps: int, *gate: dict[str, Any]) -> Plan:
    rows = [{"id": f"row{n}", "metric": "dt_step_s", **row} for n, row in enumerate(gate)]
    sets = {"phases.smoke.steps": steps, "phases.smoke.gate": rows}
    return parse_plan(with_overrides(bundled_plan("demo"), sets))


def median(min_samples: int, warmup_steps: int = 0, **more: Any) -> dict[str, Any]:
    told = {"min_samples": min_samples, "warmup_steps": warmup_steps, "pass_below": 100.0}
    return {"aggregate": "median", "over_ranks": "max", **told, **more}


def test_where_the_gate_sees_enough_nothing_is_made_again() -> None:
    plan = plan_of(1000, median(500, 20))
    assert earlier_beginnings(plan, "smoke", 480) is None
    assert earlier_beginnings(plan, "smoke", 481) == range(1, 481)
    assert earlier_beginnings(plan_of(1000), "smoke", 999) is None


def test_what_decides_nothing_sends_nobody_back() -> None:
    plan = plan_of(1000, median(20), median(900, severity="advisory"))
    assert earlier_beginnings(plan, "smoke", 980) is None


def test_what_an_earlier_phase_left_open_sends_back_whoever_could_not_meet_it() -> None:
    awaited = [Criterion.model_validate({"id": "fast", "metric": "dt_step_s", **median(500, 20)})]
    assert earlier_beginnings(plan_of(1000), "smoke", 480, awaited) is None
    assert earlier_beginnings(plan_of(1000), "smoke", 900, awaited) == range(1, 481)


def test_what_its_profile_leaves_out_or_the_plan_waives_sends_nobody_back() -> None:
    """The demo's smoke asks 15 steps of a floor and of devices, of which a CPU has none."""
    demo = parse_plan(bundled_plan("demo"))
    assert any(row.min_samples == 10 for row in demo.phase("smoke").gate)
    assert earlier_beginnings(demo, "smoke", 39) is None
    waived = plan_of(1000, median(500))
    waived = waived.model_copy(update={"waive": ["row0"]})
    assert earlier_beginnings(waived, "smoke", 999) is None


def test_the_way_back_has_an_end() -> None:
    """A gate that asks for every step of a long phase sends nobody back to its beginning."""
    far = earlier_beginnings(plan_of(50_000, median(49_000)), "smoke", 49_990)
    assert far is not None
    assert not far
    assert earlier_beginnings(plan_of(50_000, median(1_000)), "smoke", 49_990) == range(
        44_990, 49_001
    )
    short = earlier_beginnings(plan_of(3_000, median(1_500)), "smoke", 2_400)
    assert short == range(2_400 - REPEATED_STEPS, 1_501)


@given(st.integers(2, 60), st.integers(0, 30), st.integers(1, 40), st.data())
def test_behind_any_step_of_it_the_gate_sees_enough_and_behind_the_newest_it_does_not(
    steps: int, warmup: int, samples: int, data: st.DataObject
) -> None:
    newest = data.draw(st.integers(1, steps - 1))
    plan = plan_of(steps, median(samples, warmup))
    wanted = earlier_beginnings(plan, "smoke", newest)
    enough = steps - newest >= max(1, min(steps, warmup + samples))
    assert (wanted is None) is enough
    for begin in wanted or ():
        assert begin < newest
        assert steps - begin >= min(steps, warmup + samples)
