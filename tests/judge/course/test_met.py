"""Which open conditions does an ended run meet?"""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.decision import Verdict
from gonogo.contract.order import RunReason
from gonogo.judge.course.confirmation import SYNTHETIC
from gonogo.judge.course.met import met_by
from tests.judge.course.test_decide import attempt
from tests.judge.gate.test_conditions import judged_by, passing

CONFIRM: dict[str, Any] = {"reason": RunReason.CONFIRM}


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({}, 1),
        (CONFIRM, 1),
        ({**CONFIRM, "change": {"env": {"NSA_TB_DISABLE": "1"}}}, 1),
        ({**CONFIRM, "change": SYNTHETIC}, 0),
        ({**CONFIRM, "until": 80}, 0),
        ({"code": "halted", "verdict": "INCONCLUSIVE"}, 0),
        ({"verdict": "INCONCLUSIVE"}, 0),
        ({"verdict": "NO_GO"}, 0),
    ],
    ids=[
        "whole", "went on", "variant", "other data", "only answers", "halted", "undecided", "failed"
    ],
)  # fmt: skip
def test_only_a_run_of_the_phase_itself_meets_a_condition(fields: dict[str, Any], met: int) -> None:
    waiting = passing()
    rules, facts = judged_by("extended", waiting=waiting)
    run = attempt(**fields)
    assert len(met_by(run, waiting, facts, rules, verdict=run.verdict)) == met


@pytest.mark.parametrize("verdict", ["NO_GO", "INCONCLUSIVE", None])
def test_nor_does_one_by_which_its_phase_has_not_passed(verdict: Verdict | None) -> None:
    waiting = passing()
    rules, facts = judged_by("extended", waiting=waiting)
    assert met_by(attempt(), waiting, facts, rules, verdict=verdict) == []
