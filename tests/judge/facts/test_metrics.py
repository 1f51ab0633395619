"""Metrics are recomputed from the rank's own clock, not read off what it claims."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from gonogo.contract.facts import MeasureRow
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order
from gonogo.judge.facts.metrics import may_be_sums, slope
from gonogo.judge.facts.record import lay_over
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from tests.data.make_runs import STEPS, TOKENS, Rank, healthy_ranks, order_of
from tests.judge.runs import facts_of, judged, record_of, with_gate


def measured(
    ranks: list[Rank], metric: str, order: Order | None = None, **fields: Any
) -> MeasureRow:
    """What a criterion on `metric` sees of rank 0."""
    row = {"id": "c", "metric": metric, "pass_above": 0.0, **fields}
    order = with_gate(order or order_of(), row)
    return facts_of(record_of(order, ranks)).measures["c"].ranks["0"]


def step_times(rank: Rank) -> list[float]:
    starts = {line["step"]: line["mono"] for line in rank.lines if line["msg"] == "step_start"}
    ends = {line["step"]: line["mono"] for line in rank.lines if line["msg"] == "step_end"}
    return [ends[step] - starts[step] for step in sorted(ends)]


BETWEEN_S = 0.01
"""Seconds between the end of a step and the start of the next, in the runs that tests make."""


def test_speed_is_tokens_over_the_time_of_whole_steps_whatever_is_reported() -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        for line in rank.lines:
            if line["msg"] == "progress":
                line["toks_per_s"] = 847_000.0
            if line["msg"] == "step_end":
                line["dt_step_s"] = 0.001
    expected = statistics.median(TOKENS / (dt_s + BETWEEN_S) for dt_s in step_times(ranks[0]))
    assert measured(ranks, "toks_per_s").value == pytest.approx(expected, rel=1e-8)


def spread(ranks: list[Rank], every: int, seconds: float, section: str | None = None) -> None:
    """Let every rank spend time between a step and the next, after each so many steps."""
    for rank in ranks:
        lines, later_s = [], 0.0
        for line in rank.lines:
            line["mono"] += later_s
            lines.append(line)
            if line["msg"] == "step_end" and line["step"] % every == 0:
                if section is not None:
                    lines.append({**line, "msg": "section", "section": section})
                later_s += seconds
        for seq, line in enumerate(lines, start=lines[0]["seq"]):
            line["seq"] = seq
        rank.lines = lines


@pytest.mark.parametrize(
    ("every", "seconds", "section", "mean_s"),
    [
        (1, 2.0, None, 2.0), (1, 2.0, "data", 2.0), (1, 2.0, "eval", 0.0),
        (5, 3.0, "checkpoint", 0.0), (2, 2.0, None, 1.0), (STEPS - 1, 60.0, None, 0.0),
    ],
    ids=["a batch", "in data", "evaluation", "checkpoint", "every second", "once, unnamed"],
)  # fmt: skip
def test_what_a_run_spends_between_its_steps_makes_it_slower(
    every: int, seconds: float, section: str | None, mean_s: float
) -> None:
    ranks = healthy_ranks(order_of())
    dt_s = statistics.median(step_times(ranks[0]))
    spread(ranks, every, seconds, section)
    speed = measured(ranks, "toks_per_s").value
    assert speed == pytest.approx(TOKENS / (dt_s + mean_s), rel=0.12)


def test_speed_counts_the_ordered_tokens_not_those_that_are_claimed() -> None:
    ranks = healthy_ranks(order_of())
    honest = measured(ranks, "toks_per_s").value
    for line in ranks[0].lines:
        if line["msg"] == "step_end":
            line["tokens"] = 100 * TOKENS
    assert measured(ranks, "toks_per_s").value == honest


def test_device_memory_is_what_the_lines_call_reserved_else_what_the_device_says() -> None:
    order = with_gate(
        order_of(),
        {"id": "c", "metric": "gpu_mem_reserved_mb", "aggregate": "max", "pass_above": 0.0},
    )
    ranks = healthy_ranks(order)
    first = next(row for row in ranks[0].lines if row["msg"] == "progress")
    first["gpu_mem_reserved"] = 700.0
    record = record_of(order, ranks)
    samples = [
        DeviceSample(ts=0.0, mono=line["mono"], uuid=f"GPU-{rank.rank}", rank=rank.rank, util=None,
                     mem_used_mb=500.0 + line["step"])
        for rank in ranks for line in rank.lines if line["msg"] == "step_end"
    ]  # fmt: skip
    lay_over(record.ranks, samples)
    ranks_seen = facts_of(record).measures["c"].ranks
    assert (ranks_seen["0"].value, ranks_seen["0"].samples) == (700.0, STEPS)
    assert (ranks_seen["1"].value, ranks_seen["1"].samples) == (500.0 + STEPS, STEPS)


def test_step_time_and_its_variation() -> None:
    ranks = healthy_ranks(order_of())
    times = step_times(ranks[0])
    assert measured(ranks, "dt_step_s", aggregate="max").value == pytest.approx(max(times))
    cv = statistics.pstdev(times) / statistics.mean(times)
    assert measured(ranks, "step_cv").value == pytest.approx(cv)


@pytest.mark.parametrize(
    ("metric", "value", "samples"),
    [
        ("steps_completed", STEPS, 1), ("heartbeat_gaps", 0, 1), ("host_rss_mb", 300.5, STEPS),
        ("gpu_mem_reserved_mb", None, 0), ("gpu_mem_slope_mb_per_step", None, 0),
        ("val_loss", 5.15, 2), ("gate_entropy", None, 0), ("gpu_util", None, 0),
        ("gpu_util_ratio", None, 0), ("eval_s", None, 0),
    ],
)  # fmt: skip
def test_values_of_a_healthy_run(metric: str, value: float | None, samples: int) -> None:
    found = measured(healthy_ranks(order_of()), metric, aggregate="median")
    assert (found.value, found.samples) == (value, samples)


def test_the_first_loss_is_that_of_step_one() -> None:
    ranks = healthy_ranks(order_of())
    first, second = [line for line in ranks[0].lines if line["msg"] == "progress"][:2]
    del second["loss"]
    assert measured(ranks, "loss_first", aggregate="last").value == pytest.approx(first["loss"])


def test_a_resumed_attempt_owes_the_steps_after_its_checkpoint() -> None:
    order = with_gate(
        order_of(resume_step=6),
        {"id": "c", "metric": "loss", "aggregate": "all_finite", "warmup_steps": 2},
    )
    facts = facts_of(record_of(order, healthy_ranks(order)))
    assert facts.measures["c"].window == "9..12"
    assert facts.measures["c"].ranks["0"].owed == 4
    missing = facts.ranks["0"].missing
    assert missing is not None
    assert missing.count == 0
    ranks = healthy_ranks(order)
    ranks[0].lines = ranks[0].lines[:1]
    assert measured(ranks, "steps_completed", order, aggregate="last").value == 6


def test_the_forecast_counts_the_steps_of_the_phases_to_come() -> None:
    ranks = healthy_ranks(order_of())
    step_s = statistics.median(step_times(ranks[0])) + BETWEEN_S
    expected = step_s * 2 * STEPS  # extended and production
    assert measured(ranks, "forecast_s").value == pytest.approx(expected)


def test_a_skipped_step_of_fp16_is_excused_from_the_gradient_norm() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["msg"] == "progress" and line["step"] == 3:
            line |= {"skipped": True, "grad_norm": float("inf")}
    found = measured(ranks, "grad_norm", order_of(sets={"train.dtype": "fp16"}), aggregate="max")
    assert (found.samples, found.owed, found.non_finite) == (STEPS - 1, STEPS - 1, 0)
    found = measured(ranks, "grad_norm", aggregate="max")
    assert (found.samples, found.owed, found.non_finite) == (STEPS, STEPS, 1)


def test_fetch_share_is_fetch_time_over_step_time() -> None:
    ranks = healthy_ranks(order_of())
    expected = statistics.mean(0.004 / dt_s for dt_s in step_times(ranks[0]))
    assert measured(ranks, "fetch_share", aggregate="mean").value == pytest.approx(expected)


def test_memory_growth_is_a_slope_per_step() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["msg"] == "progress":
            line["gpu_mem_reserved"] = 600.0 + 2.5 * line["step"]
    assert measured(ranks, "gpu_mem_slope_mb_per_step").value == pytest.approx(2.5)


def test_cost_is_device_hours() -> None:
    ranks = healthy_ranks(order_of())
    stamps = [line["mono"] for line in ranks[0].lines if line["msg"] in ("step_start", "step_end")]
    hours = (stamps[-1] - stamps[0]) / 3600 * 2
    assert measured(ranks, "cost", aggregate="last").value == pytest.approx(hours)


BUDGET = {
    "id": "c", "metric": "cost", "aggregate": "last", "over_ranks": "max", "pass_below": 0.0025,
}  # fmt: skip
"""Device-hours: less than the twelve steps cost, and more than the last six."""


@pytest.mark.parametrize(
    ("resumed", "verdict"), [(None, "NO_GO"), (1, "INCONCLUSIVE"), (6, "INCONCLUSIVE")]
)
def test_what_a_host_left_half_way_is_not_within_its_budget(
    resumed: int | None, verdict: str
) -> None:
    order = with_gate(order_of(resume_step=resumed), BUDGET)
    assert judged(record_of(order, healthy_ranks(order))).verdict == verdict
    enough = with_gate(order, {**BUDGET, "pass_below": 1.0})
    went_on = judged(record_of(enough, healthy_ranks(enough))).verdict
    assert went_on == ("GO" if resumed is None else "INCONCLUSIVE")


@pytest.mark.parametrize(
    ("tokens", "sums"),
    [
        ([1, 2, 3, 4], True), ([1, 2, 3], False), ([1, 2, 3, 4, 1], True), ([1, 2, 3, 2, 1], False),
        ([1, 2, 3, 4, 3, 2], False), ([4, 4, 4, 4], False),
    ],
)  # fmt: skip
def test_tokens_that_rise_on_three_of_four_steps_may_be_sums(tokens: list[int], sums: bool) -> None:
    lines = [
        Heartbeat(ts=1.0, mono=float(step), pid=1, rank=0, boot="b", seq=step, step=step,
                  msg="step_end", tokens=count)
        for step, count in enumerate(tokens, start=1)
    ]  # fmt: skip
    assert may_be_sums(RankSteps(lines), build_rules(None)) is sums


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ([], 0.0), ([(4, 9.0)], 0.0), ([(1, 1.0), (3, 5.0)], 2.0),
        ([(1, 1.0), (2, 3.0), (3, 2.0)], 0.5),
    ],
)  # fmt: skip
def test_the_slope_is_that_of_least_squares(pairs: list[tuple[int, float]], value: float) -> None:
    assert slope(pairs) == pytest.approx(value)


@pytest.mark.parametrize("gone", ["step_start", "step_end"])
def test_the_cost_needs_a_start_and_an_end(gone: str) -> None:
    ranks = healthy_ranks(order_of())
    ranks[0].lines = [line for line in ranks[0].lines if line["msg"] != gone]
    assert measured(ranks, "cost", aggregate="last").samples == 0
