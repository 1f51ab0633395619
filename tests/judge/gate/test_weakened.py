"""What weakens an order is listed; what goes too far is a condition that names it."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.doubt import DoubtKind
from gonogo.contract.facts import FindingFacts
from gonogo.contract.finding import Act, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.patience import Patience, Place, setting_at
from gonogo.contract.plan import HeartbeatCadence
from gonogo.contract.rules import Rules
from gonogo.contract.watch import Watch
from gonogo.judge.gate.added_criteria import (
    CEILINGS,
    WEAKENED,
    added_criteria,
    weaknesses,
)
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.judge.words import sentence
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, bundled_plan_names
from gonogo.watch.registry import detector_names
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, judged, record_of

NAMES = detector_names()
FACTS = facts_of(record_of())


def test_no_default_is_its_ceiling() -> None:
    assert CEILINGS.keys() <= build_rules(order_of()).watch.keys()
    for path in CEILINGS:
        assert CEILINGS[path] > setting_at(Watch(), path)


def conditions(rules: Rules) -> list[str]:
    """What makes an order weak, as the condition reports it."""
    return [row.evidence for row in added_criteria(FACTS, rules) if row.id == WEAKENED]


@pytest.mark.parametrize("name", bundled_plan_names())
def test_bundled_plans_stay_below_every_ceiling(name: str) -> None:
    resolved = resolve_plan(bundled_plan(name))
    for phase in resolved.parsed().phases:
        order = build_order(resolved, phase.name, experiment="e", run="r", token=1)
        assert conditions(build_rules(order)) == []


@pytest.mark.parametrize(
    ("path", "value", "listed", "beyond"),
    [
        ("stall.halt_s", 1_000.0, True, False),
        ("stall.halt_s", 1e9, True, True),
        ("stall.halt_s", 30.0, False, False),
        ("slow.floor_ratio", 0.01, False, False),
        ("divergence.spike_count", 8, False, False),
    ],
)
def test_a_looser_setting_is_listed_and_beyond_its_ceiling_a_condition(
    path: str, value: float, listed: bool, beyond: bool
) -> None:
    order = order_of(sets={f"watch.{path}": value})
    assert (
        any(row.name == path and row.found == value for row in weaknesses(build_rules(order)))
        is listed
    )
    assert bool(conditions(build_rules(order))) is beyond
    if beyond:
        assert judged(record_of(order)).verdict == "CONDITIONAL_GO"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heartbeat": HeartbeatCadence(alive_every_s=1e9)}, "heartbeat.alive_every_s"),
        ({"allow_drift": [*Identity.model_fields]}, "allow_drift"),
        ({"patience": {Place.COMPUTE: Patience(seconds=1_900)}}, "patience.compute"),
        ({"patience": {Place.COMPUTE: Patience(seconds=None)}}, "patience.compute"),
        ({"gate": []}, "the gate is empty"),
        ({"detectors": ["first_loss"]}, "stall does not watch"),
        ({"detectors": [row for row in NAMES if row != "stall"]}, "stall does not watch"),
        ({"preflight": ["devices"]}, "the preflight does not check"),
        ({"watch": Watch.model_validate({"stall": {"action": "warn"}})}, "stall only warns"),
    ],
)
def test_what_disarms_an_order_is_a_condition_that_names_it(
    changes: dict[str, Any], named: str
) -> None:
    found = judged(record_of(order_of().model_copy(update=changes)))
    assert found.verdict == "CONDITIONAL_GO"
    assert any(named in row.text for row in found.conditions)
    assert any(named in sentence(row) for row in found.weakened)


WARNING = FindingFacts(
    detector="divergence", severity=Severity.WARN, act=Act.GATE, step=301, value=9.4, threshold=4.5
)


@pytest.mark.parametrize(
    ("row", "asked", "verdict"),
    [
        (WARNING, False, "CONDITIONAL_GO"),
        (WARNING, True, "GO"),
        (WARNING.model_copy(update={"act": None}), False, "GO"),
        (WARNING.model_copy(update={"detector": "loader"}), False, "GO"),
    ],
)
def test_a_failed_training_that_only_warned_is_a_condition(
    row: FindingFacts, asked: bool, verdict: str
) -> None:
    order = order_of(sets={"watch.divergence.action": "warn"} if asked else None)
    found = judge(FACTS.model_copy(update={"findings": [row]}), build_rules(order))
    assert found.verdict == verdict
    told = [told.text for told in found.conditions]
    assert any("divergence (step 301, value 9.4, limit 4.5)" in text for text in told) is (
        verdict != "GO"
    )


@pytest.mark.parametrize(("path", "limit"), CEILINGS.items())
def test_a_setting_at_its_ceiling_is_no_condition_yet(path: str, limit: float) -> None:
    for value, beyond in ((limit, False), (limit + 1.0, True)):
        rules = build_rules(order_of(sets={f"watch.{path}": value}))
        assert (f"{path} is" in "".join(conditions(rules))) is beyond
        (row,) = (row for row in weaknesses(rules) if row.name == path)
        kind = DoubtKind.SETTING_BEYOND if beyond else DoubtKind.SETTING_LOOSER
        than = limit if beyond else setting_at(Watch(), path)
        assert (row.kind, row.found, row.expected) == (kind, value, than)


@pytest.mark.parametrize(("every_s", "named"), [(10.0, False), (10.1, True)])
def test_a_living_rank_has_time_for_three_lines_before_it_is_suspect(
    every_s: float, named: bool
) -> None:
    order = order_of(sets={"watch.alive_lost.suspect_s": 30.0})
    order = order.model_copy(update={"heartbeat": HeartbeatCadence(alive_every_s=every_s)})
    assert bool(conditions(build_rules(order))) is named


def test_two_steps_need_a_gate() -> None:
    rules = build_rules(order_of().model_copy(update={"gate": [], "steps": 2}))
    assert len(conditions(rules)) == 1
