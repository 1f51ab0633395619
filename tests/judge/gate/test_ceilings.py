"""A weakened watch is listed; beyond its ceiling it is a condition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gonogo.contract.finding import Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.patience import Patience, Place, bounded
from gonogo.contract.plan import HeartbeatCadence
from gonogo.contract.rules import WatchValue
from gonogo.judge.gate.ceilings import (
    CEILINGS,
    TIGHTENS,
    Ceiling,
    default_of,
    evaluate_ceilings,
    weakened,
)
from gonogo.judge.gate.rules import build_rules
from gonogo.planning import reference
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, bundled_plan_names
from tests.data.make_runs import order_of
from tests.judge.runs import judged, record_of


def test_every_setting_that_can_blunt_a_detector_has_a_ceiling() -> None:
    paths = build_rules(order_of()).watch
    settings = {path for path in paths if path != "plugins" and not path.endswith(".action")}
    assert settings - set(CEILINGS) - TIGHTENS == set()
    assert set(CEILINGS) - settings == set()


def test_a_default_is_never_beyond_its_ceiling() -> None:
    for path, ceiling in CEILINGS.items():
        default = default_of(path)
        assert not isinstance(default, int | float) or ceiling.broken(default) is None


def test_the_reference_shows_a_ceiling_that_is_a_range_with_both_of_its_ends() -> None:
    page = reference.page()
    for path, ceiling in CEILINGS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `watch.{path}` |"))
        ends = {ceiling.limit} if ceiling.other is None else {ceiling.limit, ceiling.other}
        told = {word for cell in row.split(" | ") for word in cell.split()}
        assert {f"{end:g}" for end in ends} <= {word.strip(",") for word in told}


@pytest.mark.parametrize("name", bundled_plan_names())
def test_bundled_plans_stay_below_every_ceiling(name: str) -> None:
    resolved = resolve_plan(bundled_plan(name))
    for phase in resolved.parsed().phases:
        order = build_order(resolved, phase.name, experiment="e", run="r", token=1)
        assert evaluate_ceilings(build_rules(order)) is None


@pytest.mark.parametrize(
    ("sets", "verdict", "listed"),
    [
        ({"watch.stall.halt_s": 120.0}, "GO", True),
        ({"watch.stall.halt_s": 1e12}, "CONDITIONAL_GO", True),
        ({"watch.stall.halt_s": 30.0}, "GO", False),
        ({"watch.slow.hard_floor_ratio": 1e-9}, "CONDITIONAL_GO", True),
        ({"watch.identity.params_tolerance_ratio": 1e9}, "CONDITIONAL_GO", True),
        # what has no default, and what is switched off
        ({"watch.section_deadline.log.suspect_s": 30.0}, "GO", False),
        ({"watch.section_deadline.log.suspect_s": 1e9}, "CONDITIONAL_GO", True),
        ({"watch.section_deadline.data.suspect_s": None}, "GO", True),
        ({"watch.slow.over_steps": 5}, "GO", False),
        ({"watch.slow.over_steps": 64}, "GO", False),
        ({"watch.slow.over_steps": 65}, "GO", True),
        ({"watch.slow.over_steps": 10**6}, "CONDITIONAL_GO", True),
        ({"watch.slow.hard_floor_over_steps": 0}, "CONDITIONAL_GO", True),
        # what blunts both ways
        ({"watch.slow.baseline_steps": 1}, "CONDITIONAL_GO", True),
        ({"watch.slow.baseline_steps": 8}, "GO", True),
        ({"watch.slow.baseline_steps": 200}, "GO", False),
        ({"watch.slow.baseline_steps": 10**6}, "CONDITIONAL_GO", True),
        ({"watch.slow.warmup_steps": 0}, "CONDITIONAL_GO", True),
        ({"watch.slow.window_steps": 1}, "CONDITIONAL_GO", True),
        ({"watch.divergence.alpha": 1.0}, "CONDITIONAL_GO", True),
        ({"watch.divergence.alpha": 0.5}, "GO", True),
        ({"watch.divergence.alpha": 0.001}, "CONDITIONAL_GO", True),
        ({"watch.divergence.window_steps": 16}, "CONDITIONAL_GO", True),
        ({"watch.gradients.window_steps": 16}, "CONDITIONAL_GO", True),
        ({"watch.gradients.clip_share": 1.0}, "CONDITIONAL_GO", True),
        ({"watch.non_finite.fp16_window_steps": 19}, "CONDITIONAL_GO", True),
        ({"watch.non_finite.fp16_window_steps": 200}, "GO", True),
        ({"watch.non_finite.fp16_window_steps": 10**9}, "CONDITIONAL_GO", True),
        ({"watch.straggler.ratio": 0.5}, "CONDITIONAL_GO", True),
        ({"watch.memory_leak.window_samples": 16}, "CONDITIONAL_GO", True),
        ({"watch.loader.window_steps": 4}, "CONDITIONAL_GO", True),
        ({"watch.implausible_speed.over_steps": 1}, "CONDITIONAL_GO", True),
        ({"watch.straggler.windows": 1}, "GO", False),
    ],
)
def test_looser_is_listed_and_too_loose_is_a_condition(
    sets: dict[str, Any], verdict: str, listed: bool
) -> None:
    found = judged(record_of(order_of(sets=sets)))
    assert found.verdict == verdict
    path = next(iter(sets)).removeprefix("watch.")
    assert any(text.startswith(path) for text in weakened(build_rules(order_of(sets=sets)))) is (
        listed
    )
    assert any(text.startswith(path) for text in found.weakened) is listed


@pytest.mark.parametrize(("floor", "listed"), [(None, True), (44.9, True), (45.0, False)])
def test_a_floor_below_the_profiles_is_listed(floor: float | None, listed: bool) -> None:
    resolved = resolve_plan(bundled_plan("m7c-125m"), {"watch.slow.floor_tok_s": floor})
    rules = build_rules(build_order(resolved, "smoke", experiment="e", run="r", token=1))
    assert any(text.startswith("slow.floor_tok_s") for text in weakened(rules)) is listed
    assert evaluate_ceilings(rules) is None


def with_package(name: str, settings: dict[str, Any]) -> Order:
    """An order from where a package brought a detector that is not installed here."""
    order = order_of()
    watch = order.watch.model_copy(update={"plugins": {name: settings}})
    return order.model_copy(update={"watch": watch})


def test_what_a_plan_sets_for_another_packages_detector_is_listed() -> None:
    rules = build_rules(with_package("low_loss", {"below": 0.0}))
    (said,) = (text for text in weakened(rules) if text.startswith("plugins."))
    assert said == "plugins.low_loss.below is 0.0; what loosens it is not known here"
    assert evaluate_ceilings(rules) is None
    assert not any(text.startswith("plugins") for text in weakened(build_rules(order_of())))


def test_who_says_that_the_profile_asks_for_it_weakens_the_watch_all_the_same() -> None:
    order = order_of(sets={"watch.stall.halt_s": 1e6, "watch.stall.early_s": 1e6})
    order = order.model_copy(update={"watch_from_profile": ["stall.halt_s", "stall.early_s"]})
    rules = build_rules(order)
    assert any(text.startswith("stall.halt_s is 1e+06") for text in weakened(rules))
    found = evaluate_ceilings(rules)
    assert found is not None
    assert found.observed == {"stall.halt_s": 1e6, "stall.early_s": 1e6}


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3.0), (0, 0.0), (None, 2.0), (True, None), ("auto", None)]
)
def test_only_what_is_a_number_is_compared_with_a_ceiling(
    value: object, number: float | None
) -> None:
    assert Ceiling(2.0).number(value) == number


def test_of_another_packages_setting_sixty_characters_are_told() -> None:
    long = {"words": "x" * 99}
    rules = build_rules(with_package("low_loss", {"names": long}))
    (said,) = (text for text in weakened(rules) if text.startswith("plugins."))
    assert said.partition(" is ")[2].partition(";")[0] == json.dumps(long)[:60]


def test_a_limit_that_is_broken_the_other_way_is_told() -> None:
    found = evaluate_ceilings(build_rules(order_of(sets={"watch.slow.baseline_steps": 1})))
    assert found is not None
    assert found.threshold == {"slow.baseline_steps": 8.0}
    assert found.evidence == "the watch was weakened: slow.baseline_steps is 1, its limit 8"


@pytest.mark.parametrize("said", [None, 3], ids=["none", "no table"])
def test_recorded_rules_without_a_table_of_plugins_list_none(said: int | None) -> None:
    rules = build_rules(order_of())
    watch = {path: value for path, value in rules.watch.items() if path != "plugins"}
    if said is not None:
        watch["plugins"] = WatchValue(value=said, source=Source.PLAN)
    told = weakened(rules.model_copy(update={"watch": watch}))
    assert not any(text.startswith("plugins") for text in told)


@pytest.mark.parametrize(
    ("steps", "said"),
    [(1, "1, away from the default 200"), (1_000, "1000, looser than the default 200")],
)
def test_which_way_a_setting_went_is_told(steps: int, said: str) -> None:
    told = weakened(build_rules(order_of(sets={"watch.slow.baseline_steps": steps})))
    assert f"slow.baseline_steps is {said}" in told


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"heartbeat": HeartbeatCadence(alive_every_s=1e9)}, "heartbeat.alive_every_s"),
        ({"allow_drift": [*Identity.model_fields]}, "allow_drift"),
        ({"patience": {Place.COMPUTE: Patience(seconds=1e9)}}, "patience.compute"),
        ({"patience": {Place.COMPUTE: Patience(seconds=None)}}, "patience.compute"),
    ],
)
def test_an_order_with_what_no_plan_may_have_is_a_condition_that_names_it(
    changes: dict[str, Any], path: str
) -> None:
    order = order_of().model_copy(update=changes)
    found = judged(record_of(order))
    assert found.verdict == "CONDITIONAL_GO"
    assert any(path in row.text for row in found.conditions)
    assert any(text.startswith(path) for text in found.weakened)


def test_an_explicit_limit_for_every_place_disarms_nothing() -> None:
    order = order_of()
    table = bounded(order.limits_of_places(), 900.0)
    order = order.model_copy(update={"patience": table})
    assert judged(record_of(order)).verdict == "GO"


def test_an_empty_gate_is_listed() -> None:
    order = order_of().model_copy(update={"gate": []})
    assert any("the gate is empty" in text for text in judged(record_of(order)).weakened)
