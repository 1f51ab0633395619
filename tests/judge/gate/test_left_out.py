"""Whoever does not watch, and a check that is not owed, is told; some make a condition."""

from __future__ import annotations

import pytest

from gonogo.contract.records import PREFLIGHT_CHECKS
from gonogo.contract.watch import Watch
from gonogo.judge.gate.ceilings import evaluate_ceilings, weakened
from gonogo.judge.gate.left_out import CHECKS, CHECKS_OF_RANKS, OTHERS, OWED
from gonogo.judge.gate.rules import build_rules
from gonogo.supervise.preflight.preflight import WITHOUT_SERVICE
from gonogo.watch.registry import BASIC, REGISTRY, detector_names
from tests.data.make_runs import order_of
from tests.judge.runs import judged, record_of

NAMES = detector_names()


@pytest.mark.parametrize("detectors", [["first_loss"], [row for row in NAMES if row != "stall"]])
def test_an_order_that_leaves_a_detector_out_is_no_plain_go(detectors: list[str]) -> None:
    order = order_of().model_copy(update={"detectors": detectors})
    assert "stall does not watch" in weakened(build_rules(order))
    found = evaluate_ceilings(build_rules(order))
    assert found is not None
    assert "stall does not watch" in found.evidence
    assert judged(record_of(order)).verdict == "CONDITIONAL_GO"


LISTS = [
    (list(PREFLIGHT_CHECKS), None, True),
    (["devices"], None, False),
    ([name for name in PREFLIGHT_CHECKS if name != "peak"], None, False),
    (list(WITHOUT_SERVICE), ["python", "x.py"], True),
    (["devices"], ["python", "x.py"], False),
]


@pytest.mark.parametrize(("checks", "command", "whole"), LISTS)
def test_an_order_that_owes_fewer_checks_is_no_plain_go(
    checks: list[str], command: list[str] | None, whole: bool
) -> None:
    order = order_of().model_copy(update={"preflight": checks, "command": command})
    rules = build_rules(order)
    named = [text for text in weakened(rules) if text.startswith("the preflight does not check")]
    assert (named == []) is whole
    assert (evaluate_ceilings(rules) is None) is whole
    if command is None:
        assert judged(record_of(order)).verdict == ("GO" if whole else "CONDITIONAL_GO")


@pytest.mark.parametrize(
    ("detectors", "named"),
    [
        (NAMES, []),
        ([row for row in NAMES if row != "frozen"], ["frozen"]),
        ([], [row for row in NAMES if row not in BASIC]),
    ],
    ids=["all", "all but one", "none named"],
)
def test_whoever_does_not_watch_is_listed_and_only_some_are_a_condition(
    detectors: list[str], named: list[str]
) -> None:
    order = order_of().model_copy(update={"detectors": detectors})
    rules = build_rules(order)
    said = [text for text in weakened(rules) if text.endswith(" does not watch")]
    assert sorted(said) == sorted(f"{name} does not watch" for name in named)
    assert evaluate_ceilings(rules) is None


def test_every_check_and_detector_is_owed_or_listed() -> None:
    assert {*OWED, *OTHERS} == {row.name for row in REGISTRY}
    assert {*CHECKS, *CHECKS_OF_RANKS} == set(PREFLIGHT_CHECKS) - {"store"}
    assert set(CHECKS) == set(WITHOUT_SERVICE) - {"store"}


@pytest.mark.parametrize(
    ("detector", "listed", "condition"),
    [("stall", True, True), ("slow", True, False), ("divergence", False, False)],
)
def test_a_detector_that_the_plan_lets_only_warn_counts_as_one_that_does_not_watch(
    detector: str, listed: bool, condition: bool
) -> None:
    watch = Watch.model_validate({detector: {"action": "warn"}})
    rules = build_rules(order_of().model_copy(update={"watch": watch}))
    text = f"{detector} only warns"
    assert (text in weakened(rules)) is listed
    found = evaluate_ceilings(rules)
    assert (found is not None and text in found.evidence) is condition
