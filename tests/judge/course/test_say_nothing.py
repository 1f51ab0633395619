"""A run that a person or a host ended neither excuses a failure nor hides one."""

from itertools import product
from typing import Any

import pytest

from gonogo.contract.decision import Verdict
from gonogo.contract.order import RunReason
from gonogo.judge.course.action import Attempt
from gonogo.judge.course.decide import decide
from tests.judge.course.test_decide import (
    CONFIRMING,
    NO_FLASH,
    attempt,
    confirm,
    lost,
    nan,
)

RUNS = {
    "failed": nan(),
    "passed": attempt(),
    "again_failed": confirm("NO_GO", until=400),
    "again_passed": confirm("GO", until=400),
    "again_whole": confirm("GO"),
    "varied_failed": confirm("NO_GO", NO_FLASH, until=400),
    "varied_passed": confirm("GO", NO_FLASH, until=400),
    "varied_whole": confirm("GO", NO_FLASH),
    "resumed_failed": nan(reason=RunReason.RESUME, run="run_r"),
    "resumed_passed": attempt(reason=RunReason.RESUME, run="run_r"),
    "taken_over": attempt(reason=RunReason.TAKEOVER, run="run_t"),
}
ENDED = [
    attempt(code, "INCONCLUSIVE", reason=reason)
    for code in ("halted", "superseded")
    for reason in (RunReason.FIRST, RunReason.CONFIRM, RunReason.REMEDY, RunReason.RESUME)
] + [lost()]


def told(rows: list[Attempt]) -> tuple[Any, ...]:
    action = decide(CONFIRMING, "smoke", rows, now=10_000.0)
    return action.kind, action.verdict, action.about, action.reason, action.change, action.until


@pytest.mark.parametrize("count", [1, 2])
def test_an_end_that_says_nothing_changes_nothing_of_what_follows(count: int) -> None:
    for names in product(RUNS, repeat=count):
        rows = [RUNS[name] for name in names]
        for at, ended in product(range(count), ENDED):
            assert told([*rows[:at], ended, *rows[at:]]) == told(rows), (names, at, ended)


def test_no_phase_that_failed_once_is_a_plain_go_whatever_ran_after_it() -> None:
    for names in product(RUNS, repeat=2):
        rows = [RUNS["failed"], *(RUNS[name] for name in names)]
        assert told(rows)[1] is not Verdict.GO, names
