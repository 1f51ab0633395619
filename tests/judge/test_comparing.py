"""Which runs does a comparison leave out, whatever they measured?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.judge.directory import unproved
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import Rank, healthy_ranks, order_of
from tests.judge.runs import exit_record, record_of

ORDER = order_of()
RULES = build_rules(ORDER)
CHANGED = {"doubts": [Doubt(kind=DoubtKind.SEAL_BROKEN, name="exit_node1.json")]}


def fewer_tokens(ranks: list[Rank]) -> None:
    for line in ranks[1].lines:
        if "tokens" in line:
            line["tokens"] //= 2


@pytest.mark.parametrize(
    ("change", "code", "facts", "why"),
    [
        (None, None, {}, None), (None, OutcomeCode.HALTED, {}, "ended as halted"),
        (fewer_tokens, None, {}, "tokens of rank 1 is"), (None, None, CHANGED, "exit_node1.json"),
    ],
    ids=["healthy", "halted", "other tokens", "a changed record"],
)  # fmt: skip
def test_a_run_counts_if_no_criterion_fails_or_lacks_evidence(
    change: Callable[[list[Rank]], None] | None,
    code: OutcomeCode | None,
    facts: dict[str, Any],
    why: str | None,
) -> None:
    ranks = healthy_ranks(ORDER)
    if change is not None:
        change(ranks)
    end = {"exit": exit_record(code, by=Actor.OPERATOR)} if code else {}
    made = build_facts(record_of(ORDER, ranks, **end), RULES).model_copy(update=facts)
    found = unproved(made, RULES)
    assert (found is None) == (why is None)
    assert why is None or why in str(found)
