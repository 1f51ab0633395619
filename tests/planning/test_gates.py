"""Every bundled plan can be ordered on every profile; what does not apply is left out and
reported."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.errors import Rejected
from gonogo.contract.plan import HardwareProfile, Phase, hardware_profiles
from gonogo.planning.ordering import gate_of
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, bundled_plan_names


@pytest.mark.parametrize(
    ("plan", "profile"), list(itertools.product(bundled_plan_names(), hardware_profiles()))
)
def test_every_plan_resolves_on_every_profile(plan: str, profile: str) -> None:
    resolved = resolve_plan(bundled_plan(plan), {"profile": profile})
    for phase in resolved.parsed().phases:
        order = build_order(resolved, phase.name, experiment="e", run="r", token=1)
        kept = {row.id for row in order.gate}
        whole = {row.id.partition(".")[0] for row in order.left_out}
        assert kept | whole == {row.id for row in phase.gate}


def test_a_threshold_that_contradicts_the_floor_is_left_out_and_said() -> None:
    resolved = resolve_plan(bundled_plan("m7c-125m"), {"profile": "a100-pcie-gen3"})
    order = build_order(resolved, "smoke", experiment="e", run="r", token=1)
    (speed,) = [row for row in order.gate if row.id == "throughput"]
    assert (speed.pass_above, speed.fail_below) == (35, None)
    assert [row.model_dump() for row in order.left_out] == [
        {"id": "throughput.fail_below", "why": "39 contradicts the floor of a100-pcie-gen3, 35"}
    ]


def phase(**criterion: Any) -> Phase:
    speed = {"id": "speed", "metric": "toks_per_s", **criterion}
    return Phase.model_validate({"name": "p", "steps": 1, "data": "synthetic", "gate": [speed]})


@given(
    floor=st.none() | st.integers(1, 100),
    fails=st.none() | st.integers(1, 100),
    above=st.booleans(),
)
def test_any_floor_and_threshold_make_a_criterion_or_leave_it_out(
    floor: int | None, fails: int | None, above: bool
) -> None:
    names = ("pass_above", "fail_below") if above else ("pass_below", "fail_above")
    said = {names[0]: "profile"} | ({} if fails is None else {names[1]: fails})
    gate, left_out = gate_of(phase(**said), HardwareProfile(floor_tok_s=floor), "here")
    if floor is None and fails is None:
        assert (gate, [row.id for row in left_out]) == ([], ["speed"])
        return
    (found,) = gate
    against = False
    if fails is not None and floor is not None:
        against = fails > floor if above else fails < floor
    assert getattr(found, names[0]) == floor
    assert getattr(found, names[1]) == (None if against else fails)
    assert [row.id for row in left_out] == ([f"speed.{names[1]}"] if against else [])


def test_a_criterion_that_the_profile_makes_senseless_is_refused_with_its_path() -> None:
    plan = bundled_plan("demo")
    plan["phases"][0]["gate"].append(
        {"id": "speed", "metric": "toks_per_s", "aggregate": "all_finite", "on_nan": "fail"}
    )
    resolve_plan(plan)
    plan["phases"][0]["gate"][-1]["pass_above"] = "profile"
    with pytest.raises(Rejected, match=r"phases\.sanity\.gate\.speed"):
        resolve_plan(plan)


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ({"pass_below": 1.0}, "max"), ({"fail_above": 1.0}, "max"),
        ({"pass_below": 1.0, "over_ranks": "min"}, "min"),
        ({"pass_below": 1.0, "over_ranks": "mean"}, "mean"), ({"pass_above": 1.0}, "min"),
        ({"aggregate": "all_finite"}, "min"),
        ({"metric": "toks_per_s", "pass_below": "profile"}, "max"),
    ],
)  # fmt: skip
def test_by_default_a_bound_is_of_the_worst_rank(said: dict[str, Any], rank: str) -> None:
    """One rank whose steps were short passed an upper bound for all."""
    plan = bundled_plan("demo")
    plan["profile"] = "a100-pcie-gen4"
    plan["phases"][0]["gate"] = [{"id": "mine", "metric": "dt_step_s", **said}]
    order = build_order(resolve_plan(plan), "sanity", experiment="exp_1", run="run_1", token=1)
    (criterion,) = order.gate
    assert criterion.over_ranks == rank
    assert type(order).model_validate_json(order.model_dump_json()).gate == [criterion]
