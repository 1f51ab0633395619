"""What can be asked, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.judge.compare.question import ask


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"metric": "tok_per_s"}, "did you mean toks_per_s"),
        ({"metric": "grad_norm"}, "which is better of grad_norm?"),
        ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"confidence": 1.0}, "confidence"),
        ({"warmup_steps": -1}, "warmup"),
    ],
    ids=str,
)
def test_a_question_that_cannot_be_answered_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected, match=said.replace("?", r"\?")):
        ask(**asked)
