"""Findings that can no longer be made again are left out; all else is compared as ever."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.ledger.since import not_installed, without_findings_of
from gonogo.watch.registry import missing_text


def facts(*findings: str, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """Facts with findings such as `stall halt`."""
    rows = [dict(zip(("detector", "severity"), row.split(), strict=True)) for row in findings]
    return {"findings": rows, "watch": {"problems": list(problems)}}


@pytest.mark.parametrize(
    ("then", "now", "absent"), [(0, 0, []), (1, 0, ["mine"]), (0, 1, ["mine"]), (1, 1, [])]
)
def test_a_package_that_is_missing_then_as_now_is_compared(
    then: int, now: int, absent: list[str]
) -> None:
    texts = ((), (missing_text("mine"),))
    recorded, found = facts(problems=texts[then]), facts(problems=texts[now])
    assert not_installed({"detectors": {"mine": 1, "stall": 1}}, recorded, found) == absent


def test_what_was_found_before_a_halt_of_a_changed_rule_is_compared() -> None:
    recorded = facts("hygiene warn", "stall halt", "slow halt")
    left, right = without_findings_of(["stall"], recorded, facts("hygiene warn"))
    assert left["findings"] == right["findings"] == facts("hygiene warn")["findings"]
    left, right = without_findings_of(["stall"], recorded, facts("disk warn", "slow halt"))
    assert left["findings"] != right["findings"]


def test_without_a_halt_of_it_all_findings_of_others_are_compared() -> None:
    recorded, found = facts("hygiene warn", "stall warn"), facts("hygiene warn", "slow halt")
    left, right = without_findings_of(["stall"], recorded, found)
    assert left["findings"] == facts("hygiene warn")["findings"]
    assert right["findings"] == found["findings"]
