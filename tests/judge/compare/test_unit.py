"""What one run brings, and when it brings nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.facts import Measure, MeasureRow
from gonogo.contract.order import Order
from gonogo.judge.compare.unit import NoUnit, Question, Unit, ask, build_unit
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import block_means, build_measure
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.runs import record_of

ORDER = order_of()
RULES = build_rules(ORDER)
FACTS = build_facts(record_of(), RULES)
LOSS = ask("loss", warmup_steps=2)


def brought(
    question: Question = LOSS, *, order: Order = ORDER, gone: str = "", **fields: Any
) -> Unit | NoUnit:
    """What the healthy run brings, without the lines of a message where `gone` names it."""
    ranks = healthy_ranks(order)
    if gone:
        ranks[1].lines = [line for line in ranks[1].lines if gone not in (line["msg"], *line)]
    record = record_of(order, ranks, **fields)
    rules = build_rules(order)
    measures = {
        str(row.metric): build_measure(row, record.ranks, rules) for row in question.criteria()
    }
    return build_unit("r", build_facts(record, rules), rules, measures, question, order=order)


def test_a_healthy_run_brings_its_blocks_after_the_warm_up() -> None:
    unit = brought()
    assert isinstance(unit, Unit)
    assert (unit.window, unit.samples, len(unit.blocks)) == ("3..12", 10, 10)
    assert unit.value == pytest.approx(sum(unit.blocks) / 10)
    assert unit.run == f"{ORDER.run}/1"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gone": "progress"}, "rank 1 reports no loss"),
        ({"question": ask("loss", warmup_steps=12)}, "no step after the 12 of the warm-up"),
        ({"question": ask("gpu_util", warmup_steps=1)}, "rank 0 reports no gpu_util"),
    ],
    ids=["silent rank", "too short", "not told"],
)
def test_a_run_that_does_not_show_it_is_no_unit(fields: dict[str, Any], why: str) -> None:
    found = brought(**fields)
    assert isinstance(found, NoUnit)
    assert why in found.why


RESUMED = order_of(resume_step=6)


@pytest.mark.parametrize(
    ("metric", "more", "counts"),
    [
        ("loss", {}, False),
        ("dt_step_s", {}, True),
        ("dt_step_s", {"alike_in": {"loss": 0.01}}, False),
    ],
)
def test_a_campaign_compares_no_loss_of_a_run_s_last_steps_with_one_of_all(
    metric: str, more: dict[str, Any], counts: bool
) -> None:
    """A run that its host left half way has the lower loss, whatever its variant."""
    question = ask(metric, warmup_steps=2, in_campaign=True, **more)
    found = brought(question, order=RESUMED)
    assert isinstance(found, Unit) == counts
    if isinstance(found, NoUnit):
        told = "loss" if more else metric
        assert found.why == f"it resumed after step 6, and {told} is compared of all steps"
    assert isinstance(brought(question), Unit)
    by_hand = ask(metric, warmup_steps=2, **more)  # a user who names the runs knows them; noted
    assert isinstance(brought(by_hand, order=RESUMED), Unit)


def row_of(values: list[float], **fields: Any) -> MeasureRow:
    return MeasureRow(
        samples=len(values), owed=len(values), value=1.0, blocks=block_means(values), **fields
    )


def unit_of(values: list[float], question: Question, **fields: Any) -> Unit | NoUnit:
    """What recorded facts bring that hold these samples on both ranks, steps 3 to the end."""
    rows = {rank: row_of(values) for rank in ("0", "1")}
    rows["1"] = rows["1"].model_copy(update=fields.pop("second", {}))
    measure = Measure(window=f"3..{len(values) + 2}", ranks=rows)
    return build_unit("r", FACTS, RULES, {question.metric: measure}, question, **fields)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"non_finite": 1}, "1 samples of loss of rank 1 are not finite"),
        ({"samples": 90}, "rank 1 reports 90 of 100 samples of loss"),
        ({"samples": 0, "blocks": []}, "rank 1 reports no loss"),
    ],
)
def test_a_rank_that_tells_less_leaves_the_run_out(second: dict[str, Any], why: str) -> None:
    found = unit_of([1.0] * 100, LOSS, second=second)
    assert isinstance(found, NoUnit)
    assert found.why == why


def test_speeds_are_averaged_by_what_they_cost() -> None:
    found = unit_of([100.0, 50.0], ask(warmup_steps=0))
    assert isinstance(found, Unit)
    assert found.value == pytest.approx(2 / (1 / 100 + 1 / 50))
