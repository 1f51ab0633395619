"""A taint never disappears along a resume, and a tainted run is never a plain GO."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.order import Order, Taint, TaintKind, carried_on
from gonogo.judge.gate.added_criteria import added_criteria
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import order_of
from tests.judge.runs import facts_of, judged, record_of

NAMES = st.sampled_from(["a", "b", "c"])
TAINTS = st.lists(
    st.builds(
        Taint,
        kind=st.sampled_from(TaintKind),
        experiment=NAMES.map("exp_{}".format),
        run=NAMES.map("run_{}".format),
        step=st.integers(1, 100),
        found=st.sampled_from([None, "NO_GO", "non_finite"]),
    ),
    max_size=5,
)


ORDER = order_of()


@settings(deadline=None, max_examples=50)
@given(st.lists(TAINTS, min_size=1, max_size=5))
def test_whoever_resumes_carries_every_run_that_was_tainted(steps: list[list[Taint]]) -> None:
    """Each step of the chain resumes from the one before, and adds its own."""
    carried: list[Taint] = []
    for own in steps:
        order = ORDER.model_copy(update={"taints": carried_on(own, carried)})
        carried = Order.model_validate(order.document()).taints  # as the next one reads it
    tainted = {(row.experiment, row.run) for own in steps for row in own}
    assert {(row.experiment, row.run) for row in carried} == tainted


@pytest.mark.parametrize("kinds", [[], *([kind] for kind in TaintKind), list(TaintKind)])
def test_a_healthy_run_is_go_without_taints_and_conditional_with_any(
    kinds: list[TaintKind],
) -> None:
    taints = [Taint(kind=kind, experiment="exp_1", run=f"run_{kind}", step=9) for kind in kinds]
    order = order_of().model_copy(update={"taints": taints})
    assert build_rules(order).taints == taints
    judgement = judged(record_of(order))
    assert judgement.verdict == ("CONDITIONAL_GO" if taints else "GO")
    assert [row.criterion for row in judgement.conditions] == ["unpassed"] * bool(taints)


@pytest.mark.parametrize(
    ("kind", "found", "text"),
    [
        ("unpassed", "NO_GO", "run_1 of exp_1 went to its last step, 40, and is NO_GO"),
        ("unpassed", None, "run_1 of exp_1 went to its last step, 40, and has no verdict"),
        ("failed", "stalled", "run_1 of exp_1 failed (stalled)"),
        ("drifted", None, "run_1 of exp_1 trained the checkpoint, and was not as ordered"),
    ],
)
def test_the_condition_names_the_run_and_what_was_found(
    kind: str, found: str | None, text: str
) -> None:
    taint = Taint(kind=TaintKind(kind), experiment="exp_1", run="run_1", step=40, found=found)
    rules = build_rules(order_of()).model_copy(update={"taints": [taint]})
    (row,) = added_criteria(facts_of(record_of()), rules)
    assert row.evidence == f"it resumes from a checkpoint: {text}"
    assert row.observed == [found]
