"""Exit codes are the interface of scripts: one table, every verdict and every error."""

import pytest

from gonogo.cli.exits import Exit, accepted, exit_of_error, exit_of_verdict
from gonogo.contract.decision import Verdict
from gonogo.contract.errors import (
    Conflict,
    Corrupt,
    GonogoError,
    NotAllowed,
    NotFound,
    Rejected,
    Unavailable,
)
from gonogo.contract.outcome import OutcomeCode


@pytest.mark.parametrize(
    ("verdict", "code", "expected"),
    [
        (Verdict.GO, None, 0), (Verdict.NO_GO, None, 10), (Verdict.CONDITIONAL_GO, None, 11),
        (Verdict.INCONCLUSIVE, None, 12), (None, OutcomeCode.CANCELLED, 13), (None, None, 12),
    ],
)  # fmt: skip
def test_a_verdict_has_its_own_exit_code(
    verdict: Verdict | None, code: OutcomeCode | None, expected: int
) -> None:
    assert exit_of_verdict(verdict, code) == expected


def test_an_accepted_verdict_exits_with_0_and_no_other_one_does() -> None:
    changed = {code for code in Exit if accepted(code, "conditional") != code}
    assert changed == {Exit.CONDITIONAL_GO}
    assert accepted(Exit.CONDITIONAL_GO, "conditional") == Exit.OK
    assert accepted(Exit.CONDITIONAL_GO, None) == Exit.CONDITIONAL_GO


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Rejected("x"), 2), (Conflict("x"), 2), (NotFound("x"), 3), (NotAllowed("x"), 4),
        (Unavailable("x"), 5), (Corrupt("x"), 1), (GonogoError("x"), 1),
    ],
)  # fmt: skip
def test_an_error_has_its_own_exit_code(error: GonogoError, expected: int) -> None:
    assert exit_of_error(error) == expected
