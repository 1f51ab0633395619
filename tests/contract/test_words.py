"""Small tables that everything rests on are whole."""

from __future__ import annotations

import pytest

from gonogo.contract.finding import Source
from gonogo.contract.outcome import (
    CLASS_OF,
    CODE_OF_DETECTOR,
    Actor,
    Detector,
    Outcome,
    OutcomeClass,
    OutcomeCode,
)
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Kind, is_id, new_id
from gonogo.judge.gate.rules import build_rules
from gonogo.planning.source import bundled_plan, parse_plan
from tests.data.make_runs import order_of


def test_every_outcome_code_has_a_class() -> None:
    assert set(CLASS_OF) == set(OutcomeCode)


@pytest.mark.parametrize("detector", CODE_OF_DETECTOR)
def test_a_detector_that_halts_never_means_success(detector: Detector) -> None:
    assert CLASS_OF[CODE_OF_DETECTOR[detector]] is not OutcomeClass.SUCCESS


def test_an_outcome_says_its_class_on_the_wire() -> None:
    outcome = Outcome(code=OutcomeCode.STALLED, actor=Actor.WATCHDOG)
    document = outcome.model_dump(mode="json")
    assert document["class"] == "policy"
    assert Outcome.model_validate(document) == outcome


@pytest.mark.parametrize("kind", Kind)
def test_ids_tell_their_kind_and_nothing_else_is_one(kind: Kind) -> None:
    name = new_id(kind)
    assert is_id(name, kind)
    assert not is_id(name, Kind.RUN if kind is Kind.ALERT else Kind.ALERT)
    assert not is_id(f"{name}/../x")
    assert not is_id(name.lower())


def test_every_watch_value_says_where_it_came_from() -> None:
    plan = parse_plan(bundled_plan("demo"))
    assert plan.watch.source_of("stall.halt_s") is Source.PLAN
    assert plan.watch.source_of("stall.corroborate_s") is Source.DEFAULT
    assert plan.watch.source_of("slow.floor_tok_s", frozenset({"slow.floor_tok_s"})) is (
        Source.PROFILE
    )
    values = build_rules(order_of()).watch
    assert values["stall.halt_s"].model_dump() == {"value": 5.0, "source": "plan"}
    assert values["section_deadline.data.halt_s"].model_dump() == {"value": 10.0, "source": "plan"}
    assert values["section_deadline.eval.halt_s"].model_dump() == {
        "value": 1800.0,
        "source": "default",
    }
    assert {path.partition(".")[0] for path in values} == {
        name for name in Watch.model_fields if name != "rank_divergence"
    }
