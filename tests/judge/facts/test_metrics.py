"""Metrics are recomputed from the rank's own clock, not read off what it claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.device import DeviceSample
from gonogo.contract.facts import MeasureRow
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.measure import build_measure, needed_share
from gonogo.judge.facts.metrics import METRICS, slope
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.spacing import Spacing
from gonogo.judge.facts.steps import build_rank_steps
from gonogo.judge.facts.unobserved import find_unobserved
from gonogo.judge.gate.rules import build_rules
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
        (1, 2.0, None, 2.0),
        (1, 2.0, "data", 2.0),
        (1, 2.0, "eval", 0.0),
        (5, 3.0, "checkpoint", 0.0),
        (2, 2.0, None, 1.0),
        (STEPS - 1, 60.0, None, 0.0),
    ],
    ids=["a batch", "in data", "evaluation", "checkpoint", "every second", "once, unnamed"],
)
def test_what_a_run_spends_between_its_steps_makes_it_slower(
    every: int, seconds: float, section: str | None, mean_s: float
) -> None:
    ranks = healthy_ranks(order_of())
    dt_s = statistics.median(step_times(ranks[0]))
    spread(ranks, every, seconds, section)
    speed = measured(ranks, "toks_per_s").value
    assert speed == pytest.approx(TOKENS / (dt_s + mean_s), rel=0.12)


@pytest.mark.parametrize(("section", "mean_s"), [("eval", 0.0), ("checkpoint", 0.0), ("log", 2.0)])
def test_a_rank_that_waits_while_a_peer_evaluates_or_saves_is_no_slower(
    section: str, mean_s: float
) -> None:
    ranks = healthy_ranks(order_of())
    dt_s = statistics.median(step_times(ranks[0]))
    spread(ranks[:1], 1, 2.0)
    spread(ranks[1:], 1, 2.0, section)
    speed = measured(ranks, "toks_per_s").value
    assert speed == pytest.approx(TOKENS / (dt_s + mean_s), rel=0.12)


def test_speed_counts_the_ordered_tokens_not_those_that_are_claimed() -> None:
    ranks = healthy_ranks(order_of())
    honest = measured(ranks, "toks_per_s").value
    for line in ranks[0].lines:
        if line["msg"] == "step_end":
            line["tokens"] = 100 * TOKENS
    assert measured(ranks, "toks_per_s").value == honest


def test_a_step_that_two_process_starts_share_has_no_time() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["step"] > 7 or (line["step"] == 7 and line["msg"] != "step_start"):
            line["boot"] = "later"
    assert measured(ranks, "dt_step_s").samples == STEPS - 1


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


def test_the_variation_of_times_whose_squares_no_double_holds_is_unknown() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        line["mono"] *= 1e200
    value = measured(ranks, "step_cv").value
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("metric", "value", "samples"),
    [
        ("steps_completed", STEPS, 1),
        ("heartbeat_gaps", 0, 1),
        ("host_rss_mb", 300.5, STEPS),
        ("gpu_mem_reserved_mb", None, 0),
        ("gpu_mem_slope_mb_per_step", None, 0),
        ("val_loss", 5.15, 2),
        ("gate_entropy", None, 0),
        ("gpu_util", None, 0),
        ("gpu_util_ratio", None, 0),
    ],
)
def test_values_of_a_healthy_run(metric: str, value: float | None, samples: int) -> None:
    found = measured(healthy_ranks(order_of()), metric, aggregate="median")
    assert (found.value, found.samples) == (value, samples)


def test_the_first_loss_is_that_of_step_one() -> None:
    ranks = healthy_ranks(order_of())
    first = next(line["loss"] for line in ranks[0].lines if line["msg"] == "progress")
    assert measured(ranks, "loss_first", aggregate="last").value == pytest.approx(first)


def test_a_resumed_attempt_has_no_first_loss() -> None:
    order = with_gate(
        order_of(resume_step=6),
        {"id": "c", "metric": "loss_first", "aggregate": "last", "pass_above": 0},
    )
    facts = facts_of(record_of(order, healthy_ranks(order)))
    assert facts.measures["c"].ranks["0"].samples == 0


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


def test_every_evaluation_that_is_due_is_owed() -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        rank.lines = [
            line for line in rank.lines if not (line["msg"] == "eval" and line["step"] == STEPS)
        ]
    found = measured(ranks, "val_loss", aggregate="last")
    assert (found.samples, found.owed, found.high) == (1, 2, float("inf"))


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


@pytest.mark.parametrize("again_from", [0, 4, 6])
def test_what_was_spent_before_a_rank_began_anew_is_part_of_its_cost(again_from: int) -> None:
    order = with_gate(order_of(), {**BUDGET, "pass_below": 1.0})
    ranks = [Rank(number, order) for number in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, 7):
            rank.step(step)
        rank.restart(again_from)
        for step in range(again_from + 1, STEPS + 1):
            rank.step(step)
        rank.done()
    stamps = [line["mono"] for line in ranks[0].lines if line["msg"] in ("step_start", "step_end")]
    found = measured(ranks, "cost", aggregate="last").value
    assert found == pytest.approx((stamps[-1] - stamps[0]) / 3600 * 2)


@pytest.mark.parametrize("msg", ["eval", "progress"])
@pytest.mark.parametrize("again_from", [0, 6])
@pytest.mark.parametrize("told", [True, False])
def test_what_a_process_told_of_a_step_is_not_that_of_one_that_made_it_again(
    msg: str, again_from: int, told: bool
) -> None:
    """Its weights are gone: the evaluation (or the loss) of the later one was never told."""
    gate = {"id": "c", "metric": "val_loss", "aggregate": "last", "pass_below": 5.2}
    order = with_gate(order_of(), gate)
    ranks = [Rank(number, order) for number in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, STEPS + 1):
            rank.step(step)
        first = len(rank.lines)
        rank.restart(again_from)
        for step in range(again_from + 1, STEPS + 1):
            rank.step(step)
        rank.done()
        later = [row for row in rank.lines[first:] if told or row["msg"] != msg]
        rank.lines[first:] = [{**row, "seq": seq} for seq, row in enumerate(later, start=1)]
    record = record_of(order, ranks)
    assert judged(record).verdict == ("GO" if told else "INCONCLUSIVE")
    steps = record.ranks[0]
    found = steps.evals if msg == "eval" else steps.samples("loss")
    assert (STEPS in found) == told
    assert again_from == 0 or again_from in found


@pytest.mark.parametrize(("resumed", "value"), [(None, 0.0), (6, 6.0)])
def test_who_ended_no_step_has_completed_those_before_its_checkpoint(
    resumed: int | None, value: float
) -> None:
    order = order_of(resume_step=resumed)
    ranks = healthy_ranks(order)
    ranks[0].lines = [line for line in ranks[0].lines if line["msg"] == "boot"]
    found = measured(ranks, "steps_completed", order, aggregate="last")
    assert (found.value, found.samples, found.owed) == (value, 1, 1)


@pytest.mark.parametrize(
    ("ordered", "speeds"), [(None, {1: 5.0}), (100, {1: 50.0, 2: 25.0, 3: 25.0})]
)
def test_a_speed_needs_the_tokens_of_a_step(ordered: int | None, speeds: dict[int, float]) -> None:
    """Of the predecessor's steps only the means between two lines are known."""
    stamp = {"pid": 1, "rank": 0, "boot": "b", "msg": "step_end"}
    ends = [
        Heartbeat(ts=1.0, mono=1.0, seq=1, step=1, tokens=10, **stamp),
        Heartbeat(ts=2.0, mono=2.0, seq=2, step=2, **stamp),
    ]
    steps = build_rank_steps(ends)
    steps.spacing = Spacing(step_s={1: 2.0, 2: 4.0, 3: 4.0}, reported_tok_s=None)
    rules = build_rules(order_of()).model_copy(update={"tokens_per_step": ordered})
    assert METRICS["toks_per_s"].samples(steps, rules) == speeds


@pytest.mark.parametrize(
    ("ordered", "tokens", "again", "speed"),
    [
        (None, range(100, 1701, 100), 17, None),
        (None, range(100, 1001, 100), 17, None),
        (None, [*range(100, 301, 100), *range(100, 1401, 100)], 3, None),
        (None, [*range(100, 1601, 100), 100], 16, None),
        (None, [100] * 17, 17, 50.0),
        (None, [*range(100, 1601, 100), 1600], 17, 800.0),  # a batch that grew up to its size
        (None, [*range(100, 401, 100), *[400] * 13], 4, 200.0),  # a process ended while it grew
        (None, [*range(9000, 9017)], 17, 4508.0),  # ever longer sequences
        (None, [100, 200, 300], 17, 150.0),  # by chance
        (None, [100, 200, 300, 400], 17, None),
        (None, [*range(100, 501, 100)] * 4, 20, None),
        (None, [*range(100, 501, 100)] * 3, 15, 250.0),
        (None, [*range(900, 1301, 100)] * 4, 20, 650.0),  # batches of five lengths in turns
        (100, range(100, 1701, 100), 17, 50.0),
    ],
    ids=[
        "sums", "sums of few steps", "sums begun anew", "begun anew late",
        "of each step", "grown", "grown at first", "growing", "three steps", "sums of four steps",
        "sums of each epoch", "of three epochs", "in turns", "ordered",
    ],
)  # fmt: skip
def test_of_tokens_that_may_be_those_of_the_whole_run_nobody_knows_the_speed(
    ordered: int | None, tokens: Sequence[int], again: int, speed: float | None
) -> None:
    """Else it would rise with every step, and pass any floor; after step `again` is a new boot."""
    lines = two_seconds_each(dict(enumerate(tokens, 1)), again)
    criterion = Criterion(id="c", metric="toks_per_s", aggregate="last", pass_above=0.0)
    order = with_gate(order_of(), criterion.model_dump())
    told = {"tokens_per_step": ordered, "steps": len(tokens)}
    rules = build_rules(order).model_copy(update=told)
    steps = build_rank_steps(lines)
    measures = {"c": build_measure(criterion, {0: steps}, rules)}
    assert measures["c"].ranks["0"].value == speed
    doubts = find_unobserved(RunRecord(order=order, ranks={0: steps}), rules, measures)
    assert any("rise with every step" in str(row.found) for row in doubts) == (speed is None)


@pytest.mark.parametrize(
    ("tokens", "known"),
    [
        (range(60_100, 61_701, 100), False),
        ([100] * 17, True),
        ([*range(100, 901, 100), *[900] * 8], True),  # a batch that grows anew
        (range(9000, 9017), True),  # ever longer sequences
    ],
    ids=["sums", "of each step", "grown", "growing"],
)
def test_of_tokens_that_go_on_from_a_checkpoint_nobody_knows_the_speed(
    tokens: Sequence[int], known: bool
) -> None:
    """A trainer that has saved what it had counted goes on counting: no speed, and past any."""
    order = order_of(resume_step=600, sets={"phases.smoke.steps": 617})
    steps = build_rank_steps(two_seconds_each(dict(enumerate(tokens, 601)), 617))
    rules = build_rules(order).model_copy(update={"tokens_per_step": None})
    assert bool(METRICS["toks_per_s"].samples(steps, rules)) == known


def test_what_was_computed_before_a_step_began_anew_is_the_steps() -> None:
    """Facts of before were made without."""
    stamp = {"pid": 1, "rank": 0, "boot": "b", "step": 1, "ts": 1.0}
    lines = [
        Heartbeat(mono=1.0, seq=1, msg="step_start", **stamp),
        Heartbeat(mono=7.0, seq=2, msg="section", section="eval", **stamp),
        Heartbeat(mono=90.0, seq=3, msg="step_start", **stamp),
        Heartbeat(mono=92.0, seq=4, msg="progress", dt_fetch_s=1.0, **stamp),
        Heartbeat(mono=92.0, seq=5, msg="step_end", **stamp),
    ]
    steps, rules = build_rank_steps(lines), build_rules(order_of())
    assert METRICS["dt_step_s"].samples(steps, rules) == {1: 8.0}
    assert METRICS["forecast_s"].samples(steps, rules) == {1: 8.0}
    assert METRICS["toks_per_s"].samples(steps, rules) == {1: TOKENS / 8.0}
    assert METRICS["fetch_share"].samples(steps, rules) == {1: 0.125}


def test_steps_that_are_told_of_together_are_no_faster_for_it() -> None:
    """A trainer that tells of its last ten steps at once reached any speed by nine of them."""
    lines, mono = [], 1.0
    for step in range(1, 41):
        for seq, msg in enumerate(("step_start", "step_end"), 2 * step):
            mono += 1.0 if step % 10 == 1 and msg == "step_end" else 1e-5
            lines.append(
                Heartbeat(ts=mono, mono=mono, seq=seq, step=step, msg=msg, pid=1, rank=0, boot="b")
            )
    steps, rules = build_rank_steps(lines), build_rules(order_of())
    speeds = METRICS["toks_per_s"].samples(steps, rules).values()
    assert list(speeds) == pytest.approx([TOKENS / 0.1] * 40, rel=0.01)
    assert list(METRICS["dt_step_s"].samples(steps, rules).values()) == pytest.approx(
        [0.1] * 40, rel=0.01
    )
    assert max(METRICS["step_cv"].samples(steps, rules).values()) > 0.9


def two_seconds_each(tokens: Mapping[int, int], again: int) -> list[Heartbeat]:
    """The lines of steps that tell these tokens; those after step `again` are of a new boot."""
    return [
        Heartbeat(
            ts=at, mono=at, seq=seq, step=step, msg=msg, tokens=told,
            pid=1, rank=0, boot="b" if step <= again else "later",
        )
        for step, count in tokens.items()
        for at, seq, msg, told in (
            (2.0 * step, 2 * step, "step_start", None),
            (2.0 * step + 2.0, 2 * step + 1, "step_end", count),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("gone", ["step_start", "step_end"])
def test_without_a_start_or_an_end_nobody_knows_the_cost(gone: str) -> None:
    ranks = healthy_ranks(order_of())
    ranks[0].lines = [line for line in ranks[0].lines if line["msg"] != gone]
    assert measured(ranks, "cost", aggregate="last").samples == 0


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ([], 0.0),
        ([(4, 9.0)], 0.0),
        ([(1, 1.0), (3, 5.0)], 2.0),
        ([(1, 1.0), (2, 3.0), (3, 2.0)], 0.5),
    ],
)
def test_the_slope_is_that_of_least_squares(pairs: list[tuple[int, float]], value: float) -> None:
    assert slope(pairs) == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "aggregate", "share"),
    [
        ("loss", "max", 1.0),
        ("loss", "median", 0.95),
        ("step_cv", "max", 0.95),  # one number over the window: the aggregate is moot
        ("of another package", "max", 1.0),
    ],
)
def test_all_samples_are_needed_for_what_one_could_change(
    metric: str, aggregate: str, share: float
) -> None:
    row = {"id": "c", "metric": metric, "aggregate": aggregate, "pass_above": 0.0}
    assert needed_share(Criterion.model_validate(row)) == share


@pytest.mark.parametrize(
    ("steps", "warmup", "samples", "owed"),
    [((), 0, 0, 1), ((3, 9), 0, 2, 2), ((3, 9), 5, 1, 1), ((3,), 5, 0, 1)],
)
def test_where_no_evaluation_is_due_those_that_were_told_are_owed_and_at_least_one(
    steps: tuple[int, ...], warmup: int, samples: int, owed: int
) -> None:
    order = order_of()
    order = order.model_copy(update={"train": {**order.train, "eval": None}})
    ranks = healthy_ranks(order)
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] != "eval"]
        for step in steps:
            rank.say("eval", step, "eval", val_loss=2.0)
    found = measured(ranks, "val_loss", order, aggregate="last", warmup_steps=warmup)
    assert (found.samples, found.owed) == (samples, owed)


@pytest.mark.parametrize("cadence", [None, {"every_steps": 6}], ids=["none is due", "last is"])
@pytest.mark.parametrize(("warmup", "samples"), [(11, 1), (12, 0), (100, 0)])
def test_a_warm_up_that_leaves_no_step_leaves_no_evaluation(
    warmup: int, samples: int, cadence: dict[str, int] | None
) -> None:
    """That of the last step passed a gate in whose warm-up it lay, as of who resumes near it."""
    order = order_of()
    order = order.model_copy(update={"train": {**order.train, "eval": cadence}})
    ranks = healthy_ranks(order)
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] != "eval"]
        rank.say("eval", 12, "eval", val_loss=2.0)
    found = measured(ranks, "val_loss", order, aggregate="last", warmup_steps=warmup)
    assert (found.samples, found.owed) == (samples, samples)


@pytest.mark.parametrize("cadence", [None, {"every_steps": 6}], ids=["none is due", "more"])
@pytest.mark.parametrize(
    "later", [{}, {"val_loss": None}, {"step": 3}], ids=["untold", "no number", "step told twice"]
)
def test_of_an_evaluation_that_any_rank_tells_each_owes_what_it_found(
    cadence: dict[str, int] | None, later: dict[str, Any]
) -> None:
    order = order_of()
    order = order.model_copy(update={"train": {**order.train, "eval": cadence}})
    ranks = healthy_ranks(order)
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] != "eval"]
        for step in (3, 6, 9, 12):
            rank.say("eval", step, "eval", val_loss=2.0)
    told = [line for line in ranks[0].lines if line["msg"] == "eval" and line["step"] == 9]
    told[0].update(later or {"msg": "alive"})
    found = measured(ranks, "val_loss", order, aggregate="min")
    assert (found.samples, found.owed) == (3, 4)


@pytest.mark.parametrize(
    ("told", "asked", "value", "non_finite"),
    [
        ((9.0, 2.0), {"pass_below": 3.0}, 9.0, 0),
        ((2.0, 9.0), {"pass_below": 3.0}, 9.0, 0),
        ((9.0, 2.0), {"pass_above": 3.0}, 2.0, 0),
        ((2.0, 9.0), {"pass_above": 3.0}, 2.0, 0),
        ((2.0, 9.0, 5.0), {"pass_above": 3.0}, 2.0, 0),
        ((2.0, 9.0, 5.0), {"pass_below": 3.0}, 9.0, 0),
        ((2.0, 2.0), {"pass_below": 3.0}, 2.0, 0),
        ((math.nan, 2.0), {"pass_below": 3.0}, None, 1),
        ((math.inf, 2.0), {"pass_below": 3.0}, None, 1),
        ((2.0, math.nan, 1.0), {"pass_below": 3.0}, None, 1),
    ],
)
@pytest.mark.parametrize("metric", ["val_loss", "eval_s"])
def test_of_several_evaluations_of_a_step_the_worse_one_counts(
    metric: str,
    told: Sequence[float],
    asked: dict[str, float],
    value: float | None,
    non_finite: int,
) -> None:
    ranks = evaluated(told)
    bounds = {"pass_above": None, **asked}
    found = measured(ranks, metric, without_evals(), aggregate="last", **bounds)
    assert (found.samples, found.non_finite) == (1, non_finite)
    assert value is None or found.value == value


@pytest.mark.parametrize("metric", ["loss", "grad_norm", "host_rss_mb", "comm_mb"])
@pytest.mark.parametrize(
    ("told", "asked", "value", "non_finite"),
    [
        ((50.0, 2.0), {"pass_below": 3.0}, 50.0, 0),
        ((2.0, 50.0, 1.0), {"pass_below": 3.0}, 50.0, 0),
        ((1.0, 2.0), {"pass_above": 3.0}, 1.0, 0),
        ((1.0, 50.0, 60.0), {"pass_above": 3.0}, 1.0, 0),
        ((2.0, 2.0), {"pass_below": 3.0}, 2.0, 0),
        ((math.nan, 2.0), {"pass_below": 3.0}, None, 1),
        ((math.inf, 2.0), {"pass_below": 3.0}, None, 1),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_of_several_lines_of_a_step_the_worse_one_counts(
    metric: str,
    told: Sequence[float],
    asked: dict[str, float],
    value: float | None,
    non_finite: int,
    turn: int,
) -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        last = {"msg": "progress", "step": STEPS}
        rank.lines = [line for line in rank.lines if not last.items() <= line.items()]
        for number in told:
            rank.say("progress", STEPS, "log", **{metric: number})
        rank.lines = rank.lines[::turn]
    order = with_gate(order_of(), {"id": "c", "metric": metric, "window": 1, **asked})
    record = record_of(order, ranks)
    found = facts_of(record).measures["c"].ranks["0"]
    assert (found.samples, found.non_finite) == (1, non_finite)
    assert value is None or found.value == value


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("loss_first", "loss"),
        ("gpu_mem_reserved_mb", "gpu_mem_reserved"),
        ("fetch_share", "dt_fetch_s"),
    ],
)
@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ((0.3, 0.1), {"pass_below": 0.2}),
        ((0.3, 0.0), {"pass_below": 0.2}),
        ((0.1, 0.3), {"pass_above": 0.2}),
    ],
)
def test_what_is_made_of_several_lines_of_a_step_is_made_of_the_worse_one(
    metric: str, field: str, told: Sequence[float], asked: dict[str, float]
) -> None:
    seen = []
    for numbers in (told, told[:1]):
        ranks = healthy_ranks(order_of())
        for rank in ranks:
            rank.lines = [line for line in rank.lines if line["msg"] != "progress"]
            for step in range(1, STEPS + 1):
                for number in numbers:
                    rank.say("progress", step, "log", **{field: number})
        order = with_gate(order_of(), {"id": "c", "metric": metric, "aggregate": "last", **asked})
        seen.append((order, record_of(order, ranks)))
    several, alone = (facts_of(record).measures["c"].ranks["0"] for _, record in seen)
    assert several.value is not None
    assert several.value == alone.value


def test_memory_that_one_of_several_lines_of_a_step_tells_is_in_its_slope() -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] != "progress"]
        for step in range(1, STEPS + 1):
            rank.say("progress", step, "log", gpu_mem_reserved=100.0 * step)
            rank.say("progress", step, "log", gpu_mem_reserved=50.0)
    found = measured(ranks, "gpu_mem_slope_mb_per_step", pass_above=None, pass_below=1.0)
    assert found.value == pytest.approx(100.0)


def test_a_line_of_an_update_left_out_is_no_other_number_of_a_step() -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        rank.say("progress", STEPS, "log", loss=90.0, grad_norm=math.inf, skipped=True)
        rank.say("progress", STEPS, "log", loss=2.0, grad_norm=1.0)
    found = measured(ranks, "grad_norm", pass_above=None, pass_below=9.0)
    assert (found.samples, found.non_finite) == (STEPS, 0)


def test_numbers_of_a_step_are_those_of_the_last_process_that_made_it_or_told_of_it() -> None:
    lines: list[Heartbeat] = []

    def say(boot: str, step: int, msg: str, **fields: Any) -> None:
        lines.append(
            Heartbeat(
                ts=len(lines), mono=len(lines), pid=1, rank=0, boot=boot, seq=len(lines), step=step,
                msg=msg, **fields,
            )
        )  # fmt: skip

    for step in (1, 2, 3):
        for loss in (5.0, 9.0):
            say("first", step, "progress", loss=loss)
    say("then", 2, "step_start")
    say("then", 2, "step_end")
    say("then", 3, "progress", loss=4.0)
    assert build_rank_steps(lines[:6]).spans("loss") == dict.fromkeys((1, 2, 3), (5.0, 9.0))
    assert build_rank_steps(lines).spans("loss") == {1: (5.0, 9.0)}


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ((True, None), {}),  # what counts last is all that there is
        ((None, True), {1: (5.0, 5.0)}),
        ((None, None), {1: (5.0, 6.0)}),
    ],
)
def test_only_updates_that_were_made_are_numbers_of_one_step(
    left_out: tuple[bool | None, bool | None], told: dict[int, tuple[float, float]]
) -> None:
    lines = [
        Heartbeat(
            ts=seq, mono=seq, pid=1, rank=0, boot="b", seq=seq, step=1, msg="progress",
            loss=5.0 + seq, skipped=skipped,
        )
        for seq, skipped in enumerate(left_out)
    ]  # fmt: skip
    assert build_rank_steps(lines).spans("loss") == told


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("behind", [(True,), (True, False), (False, True)])
def test_a_line_of_an_update_left_out_hides_no_other_number_of_a_step(
    behind: tuple[bool, ...], turn: int
) -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        last = {"msg": "progress", "step": STEPS}
        rank.lines = [line for line in rank.lines if not last.items() <= line.items()]
        rank.say("progress", STEPS, "log", loss=90.0)
        for skipped in behind:
            rank.say("progress", STEPS, "log", loss=2.0, skipped=skipped)
        rank.lines = rank.lines[::turn]
    fields = {"pass_above": None, "pass_below": 9.0, "aggregate": "max"}
    assert measured(ranks, "loss", **fields).value == 90.0


def test_what_a_later_process_made_again_is_no_other_number_of_a_step() -> None:
    ranks = healthy_ranks(order_of())
    for rank in ranks:
        rank.say("progress", STEPS, "log", loss=90.0)
        rank.restart(STEPS - 1)
        rank.step(STEPS, loss=2.0)
    found = measured(ranks, "loss", pass_above=None, pass_below=9.0, aggregate="max", window=1)
    assert found.value == 2.0


@pytest.mark.parametrize(
    ("aggregate", "value", "samples", "owed"),
    [("last", 9.0, 3, 3), ("max", 9.0, 3, 3), ("count", 3.0, 3, 3), ("min", 5.0, 3, 3)],
)
def test_an_evaluation_counts_where_none_was_due(
    aggregate: str, value: float, samples: int, owed: int
) -> None:
    order = order_of(sets={"phases.smoke.steps": STEPS + 1})
    ranks = healthy_ranks(order)
    for rank in ranks:
        rank.say("eval", STEPS + 1, "eval", val_loss=9.0)
    bounds = {"pass_above": None, "pass_below": 6.0, "aggregate": aggregate}
    found = measured(ranks, "val_loss", order, **bounds)
    assert (found.value, found.samples, found.owed) == (value, samples, owed)


@pytest.mark.parametrize(
    ("again", "bound", "value"),
    [
        ((2.0,), "pass_below", 9.0),
        ((2.0, 5.0), "pass_above", 2.0),
        ((5.0, 11.0, 6.0), "pass_below", 11.0),
    ],
)
def test_an_evaluation_of_what_was_loaded_is_of_the_step_that_was_saved(
    again: Sequence[float], bound: str, value: float
) -> None:
    ranks = evaluated((9.0,))
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] != "done"]
        rank.restart(STEPS)
        for loss in again:
            rank.say("eval", STEPS, "eval", val_loss=loss)
        rank.done()
    bounds = {"pass_above": None, bound: 3.0}
    found = measured(ranks, "val_loss", without_evals(), **bounds)
    assert found.value == value


def without_evals() -> Order:
    """An order that does not say after which steps it evaluates."""
    order = order_of()
    return order.model_copy(update={"train": {**order.train, "eval": None}})


def evaluated(told: Sequence[float]) -> list[Rank]:
    """Healthy ranks that tell these validation losses (and as many seconds) of their last step."""
    ranks = healthy_ranks(without_evals())
    for rank in ranks:
        rank.lines = [line for line in rank.lines if line["msg"] not in ("eval", "done")]
        for value in told:
            rank.say("eval", STEPS, "eval", val_loss=value, dt=value)
        rank.done()
    return ranks


def drifts(*boots: dict[str, Any], allow: list[str] | None = None) -> MeasureRow:
    """What `identity_drift` sees of processes, each of which ended a step unless it says `idle`."""
    order = order_of()
    order = order.model_copy(update={"allow_drift": ["git_sha"] if allow is None else allow})
    sha = order.identity.git_sha
    beats = []
    for number, boot in enumerate(boots):
        said = {"git_sha": sha, **boot}
        stamp = {"pid": number, "rank": 0, "boot": f"b{number}", "ts": 9.0 * number + 1}
        first = Heartbeat(mono=1.0, seq=1, step=0, msg="boot", git_sha=said["git_sha"], **stamp)
        last = Heartbeat(mono=2.0, seq=2, step=number + 1, msg="step_end", **stamp)
        beats += [row for row, name in ((first, "mute"), (last, "idle")) if not boot.get(name)]
    criterion = Criterion.model_validate(
        {"id": "c", "metric": "identity_drift", "aggregate": "last", "pass_below": 0.0}
    )
    ranks = {0: build_rank_steps(beats)}
    return build_measure(criterion, ranks, build_rules(order)).ranks["0"]


NEW = {"git_sha": "f" * 40}


@pytest.mark.parametrize(
    ("boots", "value"),
    [
        ([{}], 0.0),
        ([NEW], 1.0),
        ([NEW, {}], 1.0),  # a step of other code
        ([{**NEW, "idle": True}, {}], 0.0),
        ([{}, {**NEW, "idle": True}], 1.0),  # the last one counts whatever it did
        ([{"mute": True}], None),
        ([{"git_sha": None}], None),
        ([{"git_sha": None}, {}], None),
        ([{"git_sha": None, "idle": True}, {}], 0.0),
    ],
)
def test_drift_is_counted_over_every_process_that_took_a_step(
    boots: list[dict[str, Any]], value: float | None
) -> None:
    found = drifts(*boots)
    assert (found.value, found.samples) == (value, 0 if value is None else 1)


def test_where_nothing_may_drift_nothing_is_counted() -> None:
    assert drifts(NEW, allow=[]).samples == 0


def test_criterion_models_are_rebuilt_from_rules_unchanged() -> None:
    order = order_of()
    rules = build_rules(order)
    recorded = [Criterion.model_validate(row) for row in rules.document()["gate"]]
    assert recorded == rules.gate == order.gate
